"""The routes of Flask and Quart, which are Werkzeug's, as the published policy shows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.http.marks import UNSAFE, Marked, marked, nearest_mark

if TYPE_CHECKING:
    from werkzeug.routing import Map

PARAMETER = re.compile(r"<(?:[^<>:]*(?:\([^)]*\))?:)?([^<>:]+)>")
"""`<name>`, `<int:name>`, `<any(a, b):name>`."""


def marked_rules(routes: Map, views: Mapping[str, Callable[..., Any]]) -> Iterator[Marked]:
    """Every marked view."""
    for rule in routes.iter_rules():
        view = views.get(rule.endpoint)
        path = PARAMETER.sub(r"{\1}", rule.rule)
        yield from marked(path, rule.methods or UNSAFE, partial(nearest_mark, view))
