"""Keys of services that read them in the body of a request."""

from __future__ import annotations

import json
from typing import cast

from semel.core.dialects import KeyDialect
from semel.core.journal import CallRequest


def put_key(request: CallRequest, key: str, dialect: KeyDialect) -> bytes:
    """The body with the key in it, for a service that reads it there; else the body as it is."""
    if dialect.put is not None:
        return dialect.put(request.body, key)
    if not dialect.body_field:
        return request.body
    document = _read_object(request.body)
    if document is None:
        raise ValueError(
            f"the dialect {dialect.name} sends the key in the field {dialect.body_field} of a JSON object, "
            "and the body of this request is none"
        )
    return json.dumps({dialect.body_field: key} | document).encode()


def read_body_key(request: CallRequest, dialect: KeyDialect) -> str:
    """The key that the caller has put into the body, for a service that reads it there; empty without one."""
    document = _read_object(request.body) if dialect.body_field else None
    key = None if document is None else document.get(dialect.body_field)
    if key is not None and not isinstance(key, str):
        raise TypeError(f"{dialect.body_field} must be text, not {type(key).__name__}")
    return key or ""


def _read_object(body: bytes) -> dict[str, object] | None:
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", document) if isinstance(document, dict) else None
