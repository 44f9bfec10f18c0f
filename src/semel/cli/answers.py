"""An operator's answer for an unknown outcome, in the format of the code that uses the key."""

from __future__ import annotations

import json

from semel.codecs import responses, values
from semel.codecs.values import Returned, Values
from semel.core.fingerprint import of_function, of_request
from semel.core.records import Record, Result
from semel.errors import Unstorable

OF_FUNCTIONS = frozenset({values.FORMAT, values.ERROR, values.TOMBSTONE})
OF_REQUESTS = frozenset({responses.FORMAT, responses.WITH_REASON})
VALUE_WAY_OUT = "give its return value as JSON"


def encode_value(text: bytes) -> Result:
    """JSON as the return value of a function."""
    try:
        return Values[object]().encode(Returned(json.loads(text)))
    except (ValueError, RecursionError, Unstorable) as error:
        raise ValueError(f"the key is a function's, so {VALUE_WAY_OUT}: {error}") from error


def find_misfit(record: Record, result: Result) -> str:
    """Why the code that uses the key could not read this result; empty if it can.

    A key that is neither a function's nor a request's belongs to code that uses the store by itself.
    """
    if of_function(record.fingerprint) and result.format not in OF_FUNCTIONS:
        return f"the key is a function's, and {result.format!r} is not what functions store: {VALUE_WAY_OUT}"
    if of_request(record.fingerprint) and result.format not in OF_REQUESTS:
        return f"the key is an HTTP request's, and {result.format!r} is not what requests store: leave the format out"
    return ""
