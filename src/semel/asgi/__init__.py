"""Idempotency keys for ASGI applications."""

from semel.asgi.middleware import IdempotencyMiddleware
from semel.core.rules import Rule
from semel.http.marks import idempotency_exempt, idempotent

__all__ = ["IdempotencyMiddleware", "Rule", "idempotency_exempt", "idempotent"]
