"""Counting failed attempts of messages, in items of their own."""

from __future__ import annotations

from semel.core.attempts import CountAttempt
from semel.core.effects import Plan, do
from semel.errors import StoreUnavailable
from semel.stores.dynamodb import queries
from semel.stores.dynamodb.layout import ATTEMPTS, digest_of, number_in
from semel.stores.dynamodb.queries import ConditionFailed

TRIES_MAX = 20


def count_attempt(call: CountAttempt, now_ms: int) -> Plan[int]:
    """Count on, or begin anew where nothing is remembered."""
    digest, forget_ms = ATTEMPTS + digest_of(call.key), now_ms + call.retention_ms
    for _ in range(TRIES_MAX):
        reply = yield from do(queries.count_on(digest, call.error, now_ms, forget_ms))
        if not isinstance(reply, ConditionFailed):
            return number_in(reply["Attributes"], "count")
        reply = yield from do(queries.count_first(digest, call.error, now_ms, forget_ms))
        if not isinstance(reply, ConditionFailed):
            return 1
    raise StoreUnavailable(f"the count of {call.key} was changed {TRIES_MAX} times while one call was counting")
