"""Cursors of `scan`: the last key that was shown. What comes after it, each store knows by its own order."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from semel.core.records import Key, Record
from semel.store import Page


def sort_key(key: Key) -> tuple[bytes, bytes, bytes]:
    """The order of a store that has no other."""
    return key.tenant.encode(), key.scope.encode(), key.name.encode()


def cursor_of(key: Key) -> str:
    return urlsafe_b64encode(json.dumps([key.tenant, key.scope, key.name]).encode()).decode()


def key_after(cursor: str | None) -> Key | None:
    """The key to continue after, or None at the beginning."""
    if cursor is None:
        return None
    try:
        return Key(*json.loads(urlsafe_b64decode(cursor)))
    except (ValueError, TypeError):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned") from None


def page(records: Sequence[Record], limit: int, now_ms: int) -> Page:
    """Make a page of the first `limit` of `records`, which must hold one more if there is more."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    shown = tuple(records[:limit])
    return Page(shown, cursor_of(shown[-1].key) if len(records) > limit else None, now_ms=now_ms)
