"""Answers as stored results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import RecordUnreadable, Result
from semel.codecs import responses
from semel.codecs.responses import AnswerNotKept
from semel.core.http import Response

headers = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=5).map(tuple)


@given(st.integers(200, 599), headers, st.binary(max_size=200), st.none() | st.binary(max_size=20))
def test_every_answer_comes_back_as_it_was(
    status: int, sent: tuple[tuple[bytes, bytes], ...], body: bytes, reason: bytes | None
) -> None:
    answer = Response(status, sent, body, reason)
    assert responses.decode(responses.encode(answer, ok=True)) == answer


def test_a_tombstone_is_no_answer() -> None:
    assert responses.decode(responses.tombstone(ok=False)) is AnswerNotKept.ENDED
    assert responses.decode(responses.tombstone(AnswerNotKept.ANSWERING, ok=True)) is AnswerNotKept.ANSWERING
    assert responses.tombstone(ok=False).ok is False


@pytest.mark.parametrize(
    "stored",
    [
        Result("http.2", b""),
        Result(responses.FORMAT, b"\xc1"),
        Result(responses.FORMAT, b"\x93\x01\x02\x03"),
        Result(responses.WITH_REASON, b"\x93\x01\x90\xc4\x00"),
    ],
)
def test_what_cannot_be_read_is_never_treated_as_absent(stored: Result) -> None:
    with pytest.raises(RecordUnreadable):
        responses.decode(stored)
