"""The key and the problems in drf-spectacular's schema.

SPECTACULAR_SETTINGS = {"POSTPROCESSING_HOOKS": ["semel.django.openapi.describe_schema"]}
"""

from __future__ import annotations

import re
from typing import Any

from django.urls import Resolver404, get_resolver

from semel.core.policy import Policy
from semel.core.rules import policy_for
from semel.django import config
from semel.django.marks import mark_on
from semel.http.marks import Unmarked
from semel.http.openapi import PARAMETER_EXAMPLES, describe


def describe_schema(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """A postprocessing hook: shows the key's header and the problems on every protected operation."""
    given = config.read()

    def policy_of(method: str, path: str) -> Policy | None:
        mark = _mark(method, path)
        if isinstance(mark, Unmarked):
            return policy_for(method, path, given.rules, given.policy)
        return mark if mark is not None and method in mark.methods else None

    return describe(result, policy_of)


def _mark(method: str, path: str) -> Policy | Unmarked | None:
    """The mark of the view for a path of the schema. The sample values for parameters must suit their converters."""
    for example in PARAMETER_EXAMPLES:
        try:
            view = get_resolver().resolve(re.sub(r"\{[^}]+\}", example, path)).func
        except Resolver404:
            continue
        return mark_on(view, method)
    return Unmarked()
