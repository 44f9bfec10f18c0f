"""The options that every HTTP front takes. A front adds its own, and has the defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from semel.core.policy import Policy
from semel.core.rules import Rule
from semel.runtime.listener import OnEvent


class HttpSettings(TypedDict, total=False):
    policy: Policy
    rules: Iterable[Rule]
    publish: str | None
    secret: bytes | str | None
    on_event: OnEvent
    quota_storage: str
    waiters_max: int
