"""Every adapter against servers that stall or lie, and behind a proxy that repeats by itself. Effects are counted."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from client.api import EARLY_HINT, serving
from client.fronts import Open
from client.protected import protecting
from client.proxies import repeating
from semel import Policy
from semel.client import Journal, Retry, report_of
from semel.core.retries import AttemptEnd

HOUR = timedelta(hours=1)
READ_TIMEOUT_S = 0.3
FIXED = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\npaid"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


def answer(status: str, headers: Mapping[str, bytes] = {}, body: bytes = b"paid") -> bytes:
    lines = [f"HTTP/1.1 {status}".encode("latin-1"), b"Connection: close", b"Content-Length: %d" % len(body)]
    lines += [name.encode() + b": " + value for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", body])


@pytest.mark.parametrize("trouble", ["stall", "stall-half"])
def test_an_answer_that_comes_too_late_is_asked_for_again(open_front: Open, journal: Journal, trouble: str) -> None:
    with serving(trouble) as api:
        front = open_front(journal=journal)
        front.timeout = READ_TIMEOUT_S
        received = front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert (received.status, received.body, received.report.replayed) == (201, b"paid", True)
        assert len(api.requests) >= 2
        assert list(api.effects.values()) == [1]
        assert not journal.pending()


@pytest.mark.parametrize("trouble", ["stall", "stall-half"])
def test_a_server_that_always_stalls_leaves_the_intent_open(open_front: Open, journal: Journal, trouble: str) -> None:
    with serving(trouble, trouble) as api:
        front = open_front(journal=journal, retry=Retry(attempts=2, pause_max=0.02))
        front.timeout = READ_TIMEOUT_S
        with pytest.raises((front.lost, OSError)):
            front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        (left,) = journal.pending()
        assert (left.attempts, left.error.partition(":")[0]) == (2, "the connection failed")
        front.timeout = 20
        assert front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR)).report.replayed
        assert (len(api.requests), list(api.effects.values())) == (3, [1])


@pytest.mark.parametrize(
    "retry_after",
    [
        b"Thu, 01 Jan 1970 00:00:00 GMT",
        b"Sunday, 06-Nov-94 08:49:37 GMT",
        b"Fri, 31 Dec 9999 23:59:59 GMT",
        b"Fri, 31 Dec 99999 23:59:59 GMT",
        b"Fri, 31 Feb 2027 99:99:99 -9999",
        b"-1",
        b"",
        b"soon",
        b"1.5",
        b"1e9",
        b"9" * 10_000,
        "\u0661\u0662".encode(),
        b"\xff\xfe",
        b"1, 2",
    ],
    ids=lambda value: value[:30].decode("latin-1"),
)
def test_no_retry_after_is_waited_for_longer_than_the_cap(open_front: Open, retry_after: bytes) -> None:
    """A wait beyond the cap would be beyond the deadline too, and the caller would get the 503."""
    retry = Retry(attempts=3, deadline=20, pause_max=0.001, retry_after_max=0.02)
    with serving(answer("503 Service Unavailable", {"Retry-After": retry_after})) as api:
        received = open_front(retry=retry).post(api.url)
        assert (received.status, received.body, received.report.attempts) == (201, b"paid", 2)
        assert list(api.effects.values()) == [1]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 abc Created\r\n\r\n", id="no status"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x46", id="an alert of TLS"),
        pytest.param(answer("201 Created", {"Content-Encoding": b"gzip"}), id="not compressed"),
        pytest.param(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npa", id="half a chunk"),
        pytest.param(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", id="no chunk"),
        pytest.param(answer("201 Created", {"X-Long": b"x" * 300_000}), id="a header without end"),
        pytest.param(EARLY_HINT, id="an early hint and no answer"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="100 and no answer"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", id="101"),
        pytest.param(answer("409 Conflict", body=b"a conflict of its own"), id="409 of another kind"),
        pytest.param(answer("504 Gateway Timeout", {"X-Idempotent-Replayed": b"true"}), id="504 with a wrong header"),
        pytest.param(answer("502 Bad Gateway", {"Content-Type": b"application/problem+json"}, b"{"), id="no document"),
    ],
)
def test_an_answer_that_tells_nothing_is_asked_for_again(open_front: Open, journal: Journal, lie: bytes) -> None:
    with serving(lie) as api:
        received = open_front(journal=journal).post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert (received.status, received.body, received.report.attempts) == (201, b"paid", 2)
        assert (list(api.effects.values()), journal.pending()) == ([1], ())


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(FIXED.replace(b"1.1", b"1.0"), id="HTTP/1.0"),
        pytest.param(b"HTTP/1.0 201 Created\r\n\r\npaid", id="no length"),
        pytest.param(answer("201 Created", {"Connection": b"close"}), id="close"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + FIXED, id="100 first"),
        pytest.param(answer("201 \xe9t\xe9", {"X-Name": b"\xff\x80"}), id="not ASCII"),
        pytest.param(answer("201 Created", {"Idempotent-Replayed": b"maybe"}), id="a replay, perhaps"),
    ],
)
def test_an_odd_answer_is_an_answer(open_front: Open, journal: Journal, odd: bytes) -> None:
    with serving(odd) as api:
        for run in range(2):
            received = open_front(journal=journal).post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
            assert (received.status, received.body) == (201, b"paid")
            assert (received.report.attempts, received.report.replayed) == (1 - run, bool(run))
        assert (len(api.requests), list(api.effects.values())) == (1, [1])


def test_hints_before_the_answer_are_not_the_answer(open_front: Open, kind: str, journal: Journal) -> None:
    """Python's http.client takes a 103 for the answer. Then the request is sent again."""
    with serving(EARLY_HINT + EARLY_HINT + FIXED) as api:
        received = open_front(journal=journal).post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert (received.status, received.body) == (201, b"paid")
        assert list(api.effects.values()) == [1]
        assert len(api.requests) == (2 if kind in ("requests", "urllib3") else 1)


def test_an_answer_after_a_hint_is_not_taken_for_the_next_one(open_front: Open, kind: str) -> None:
    if kind == "aiohttp":
        pytest.skip("its sock_read timeout ends with the first hint, and the late answer is the right one")
    with serving("hint-only", "hint-only") as api:
        front = open_front(retry=Retry(attempts=1))
        front.timeout = READ_TIMEOUT_S
        for name in (b"a", b"b"):
            with pytest.raises((front.lost, OSError)) as lost:
                front.post(api.url, name)
            assert report_of(lost.value).end is AttemptEnd.LOST
        assert [body for _, _, body in api.requests] == [b"a", b"b"]


@pytest.mark.parametrize("status", ["500 Internal Server Error", "502 Bad Gateway"])
def test_a_failure_that_the_server_says_it_has_stored_is_the_answer(
    open_front: Open, journal: Journal, status: str
) -> None:
    with serving(answer(status, {"Idempotent-Replayed": b"true"}, b"boom")) as api:
        for run in range(2):
            received = open_front(journal=journal).post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
            assert (received.status, received.body) == (int(status[:3]), b"boom")
            assert (received.report.attempts, received.report.replayed) == (1 - run, True)
        assert (len(api.requests), list(api.effects.values())) == (1, [1])


def test_a_conflict_that_stays_is_returned_and_is_not_the_answer(open_front: Open, journal: Journal) -> None:
    with serving(*[answer("409 Conflict", body=b"a conflict of its own")] * 4) as api:
        front = open_front(journal=journal)
        received = front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert (received.status, received.body, received.report.attempts) == (409, b"a conflict of its own", 4)
        assert journal.pending()[0].error.startswith("409: the first request with this key is still running")
        assert front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR)).body == b"paid"
        assert list(api.effects.values()) == [1]


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "at once"])
def test_a_proxy_that_sends_everything_twice(open_front: Open, journal: Journal, at_once: bool) -> None:
    with protecting(Policy()) as shop, repeating(shop.url, at_once=at_once) as proxy:
        front = open_front(journal=journal, retry=Retry(attempts=8, pause_max=0.02, retry_after_max=0.02))
        for number in range(3):
            body = b"amount=%d" % number
            received = front.post(f"{proxy.url}/v1/charges", body, intent=journal.intent(f"pay:{number}", max_age=HOUR))
            assert (received.status, received.body) == (200, b'{"id":"ch_%d","object":"charge"}' % (number + 1))
        assert list(shop.effects.values()) == [1, 1, 1]
        assert len(proxy.statuses) >= 3
