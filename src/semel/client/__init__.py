"""The caller's side: one durable key for each logical operation, and retries that are safe.

`with journal.intent("pay:order:42", max_age=timedelta(hours=23)) as intent:` names the operation. The adapters of
`semel.client.httpx`, `httpx2`, `requests`, `aiohttp` and `urllib3` send its request under one key, again and again if
need be, and the journal keeps the answer.
"""

from semel.client.breaker import Breaker, FailedAttempt
from semel.client.budget import RetryBudget
from semel.client.journal import Indeterminate, Intent, Journal, ResumedIntent
from semel.client.reports import CallReport, report_of
from semel.client.retry import Retry
from semel.core.dialects import (
    ADYEN,
    AWS_EC2,
    DRAFT_07,
    GOCARDLESS,
    KLARNA,
    MOLLIE,
    PAYPAL,
    REPEATABILITY,
    SQUARE,
    STRIPE,
    X_IDEMPOTENCY_KEY,
    KeyDialect,
    KeyFormat,
    KeyQuoting,
    form_field,
)
from semel.core.retries import AttemptEnd, RepeatLimit

__all__ = [
    "ADYEN",
    "AWS_EC2",
    "DRAFT_07",
    "GOCARDLESS",
    "KLARNA",
    "MOLLIE",
    "PAYPAL",
    "REPEATABILITY",
    "SQUARE",
    "STRIPE",
    "X_IDEMPOTENCY_KEY",
    "AttemptEnd",
    "Breaker",
    "CallReport",
    "FailedAttempt",
    "Indeterminate",
    "Intent",
    "Journal",
    "KeyDialect",
    "KeyFormat",
    "KeyQuoting",
    "RepeatLimit",
    "ResumedIntent",
    "Retry",
    "RetryBudget",
    "form_field",
    "report_of",
]
