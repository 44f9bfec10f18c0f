"""`Prefer: respond-async, wait=N`."""

import time

import pytest

from semel.core.prefer import respond_async


@pytest.mark.parametrize(
    ("values", "wait_s"),
    [
        ([], None),
        ([b"wait=5"], None),
        ([b"return=minimal"], None),
        ([b"respond-async"], 0),
        ([b"Respond-Async"], 0),
        ([b"respond-async, wait=5"], 5),
        ([b"wait = 5 , respond-async;foo=bar"], 5),
        ([b'respond-async, wait="5"'], 5),
        ([b"respond-async", b"wait=5"], 5),
        ([b"respond-async, wait=5, wait=9"], 5),
        ([b"respond-async, wait=100000"], 60),
        ([b"respond-async, wait=" + b"9" * 500], 0),
        ([b"respond-async, wait=-1"], 0),
        ([b"respond-async, wait=\xb2"], 0),
        ([b'foo="a, respond-async, b"'], None),
        ([b'foo="a, b"; x="1,2", respond-async'], 0),
        ([b"respond-asynchronously"], None),
        ([b"respond-async" + b" " * 2000], None),
    ],
)
def test_what_was_preferred(values: list[bytes], wait_s: int | None) -> None:
    assert respond_async([(b"accept", b"respond-async"), *((b"Prefer", value) for value in values)]) == wait_s


def test_hostile_values_take_no_time() -> None:
    started = time.thread_time()
    respond_async([(b"prefer", b'"\\' * 512)])
    respond_async([(b"prefer", b'"\\' * 30_000)])
    assert time.thread_time() - started < 1
