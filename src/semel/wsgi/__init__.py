"""Idempotency keys for WSGI applications."""

from semel.core.rules import Rule
from semel.wsgi.middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware", "Rule"]
