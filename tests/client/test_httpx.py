"""The httpx transport against a server that takes effect and then fails. Effects are counted at the server."""

import re
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from client.api import serving
from semel.client import DRAFT_07, CallReport, Indeterminate, Journal, KeyDialect, KeyFormat, Retry, report_of
from semel.client.httpx import IdempotentTransport
from semel.core.journal import BODY_MAX, IntentState
from semel.core.retries import AttemptEnd, RepeatLimit
from semel.errors import InProgress, KeyReused, Misuse, StoreMisconfigured
from waiting import until

HOUR = timedelta(hours=1)
FAST = Retry(attempts=4, deadline=10, pause_max=0.02)


def client(
    journal: Journal | None = None, retry: Retry = FAST, dialect: KeyDialect = DRAFT_07, **rest: object
) -> httpx.Client:
    transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal, retry=retry, dialect=dialect)
    return httpx.Client(transport=transport, **rest)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


def test_without_the_transport_the_same_trouble_doubles_the_effect() -> None:
    with serving("drop") as api, httpx.Client() as http:
        with pytest.raises(httpx.TransportError):
            http.post(api.url)
        http.post(api.url)
        assert api.effects == {"": 2}


def test_a_server_that_asks_to_wait_for_years_is_not_waited_for() -> None:
    with serving("refuse 503 1000000000") as api, client() as http:
        response = http.post(api.url)
        assert response.status_code == 503
        assert report_of(response).attempts == 1, "the deadline comes first"


def test_the_last_error_is_raised_as_httpx_has_it() -> None:
    with serving(*["drop"] * 4) as api, client() as http:
        with pytest.raises(httpx.RemoteProtocolError) as lost:
            http.post(api.url)
        assert len(api.requests) == 4
        assert list(api.effects.values()) == [1]
        ((key, _),) = api.effects.items()
        assert report_of(lost.value) == CallReport(
            key.strip('"'), 4, False, AttemptEnd.LOST, limit=RepeatLimit.ATTEMPTS
        )
    with client() as http, pytest.raises(httpx.ConnectError) as unreached:
        http.post(api.url)
    assert report_of(unreached.value).end is AttemptEnd.UNREACHED
    with client() as http, pytest.raises(httpx.UnsupportedProtocol) as unsendable:
        http.post("ftp://127.0.0.1/")
    assert report_of(unsendable.value).end is AttemptEnd.UNSENDABLE


def test_generators_are_refused_with_an_explanation_and_forms_are_not() -> None:
    with serving("drop") as api, client() as http:
        with pytest.raises(Misuse, match="or an open file, which can be sent only once: give it as bytes"):
            http.post(api.url, content=iter([b"a", b"b"]))
        assert not api.requests
        http.post(api.url, files={"file": b"x" * 10_000})
        assert len(api.requests) == 2
        assert api.requests[0] == api.requests[1]


def test_a_long_answer_is_streamed_where_no_journal_keeps_it() -> None:
    with serving("long") as api, client() as http, http.stream("POST", api.url) as response:
        assert next(response.iter_bytes(4)) == b"long"
        assert not response.is_closed


@pytest.mark.parametrize("behaviour", ["answer", "gzip"])
def test_an_answer_is_read_like_one_from_the_network(journal: Journal, behaviour: str) -> None:
    with serving(behaviour) as api, client(journal) as http:
        for _ in range(2):
            intent = journal.intent("pay:42", max_age=HOUR)
            with http.stream("POST", api.url, extensions={"semel": intent}) as response:
                assert list(response.iter_raw()) == [b"paid"]
            assert response.elapsed >= timedelta(0)
            assert response.headers["content-length"] == "4"
        assert len(api.requests) == 1


def test_the_answer_to_a_head_keeps_its_headers() -> None:
    with serving() as api, client() as http:
        headers = http.head(api.url).headers
        assert (headers["content-length"], headers["content-encoding"]) == ("7", "gzip")


@pytest.mark.parametrize(("key", "says"), [("k" * 256, "key has 256 bytes in UTF-8"), ("é", "key must be printable")])
def test_a_key_that_no_service_takes_is_named(journal: Journal, key: str, says: str) -> None:
    with serving() as api, client(journal) as http:
        with pytest.raises(ValueError, match=says):
            http.post(api.url, headers={b"Idempotency-Key": key.encode()})
        assert not api.requests


@pytest.mark.parametrize(
    ("format", "looks"),
    [(KeyFormat.UUID4, r".{8}-.{4}-4.+"), (KeyFormat.UUID7, r".{8}-.{4}-7.+"), (KeyFormat.ULID, r"[0-9A-Z]{26}")],
)
def test_the_format_of_new_keys_is_a_choice(journal: Journal, format: KeyFormat, looks: str) -> None:
    with serving() as api, client(journal, dialect=DRAFT_07.making(format)) as http:
        http.post(api.url)
        http.post(api.url, extensions={"semel": journal.intent("pay:42", max_age=HOUR)})
        keys = [key for _, key, _ in api.requests]
    assert len(set(keys)) == 2
    assert all(re.fullmatch(f'"{looks}"', key) for key in keys)


def test_a_derived_key_outlives_its_journal_and_is_another_one_in_another_namespace() -> None:
    with serving() as api:
        for namespace in ("", "", "shop", "bank"):
            journal = Journal("memory://", namespace=namespace)
            with client(journal, dialect=DRAFT_07.making(KeyFormat.DERIVED)) as http:
                http.post(api.url, extensions={"semel": journal.intent("pay:42", max_age=HOUR)})
        first, again, *others = (key for _, key, _ in api.requests)
        assert first == again
        assert len({first, *others}) == len(api.effects) == 3


def test_threads_with_one_intent_make_one_request_and_all_get_the_answer(journal: Journal) -> None:
    with serving() as api, client(journal) as http:
        api.may_answer.clear()

        def pay(_: int) -> bytes:
            return http.post(api.url, extensions={"semel": journal.intent("pay:42", max_age=HOUR)}).content

        with ThreadPoolExecutor(12) as threads:
            answers = [threads.submit(pay, number) for number in range(12)]
            until(lambda: api.requests)
            api.may_answer.set()
            assert {answer.result() for answer in answers} == {b"paid"}
        assert len(api.requests) == 1


def test_the_lease_is_renewed_while_a_request_is_under_way(journal: Journal) -> None:
    with serving() as api:
        api.may_answer.clear()
        transport = IdempotentTransport(httpx.HTTPTransport(), journal=journal, lease=1.5)
        with httpx.Client(transport=transport, timeout=30) as http:
            intent = journal.intent("pay:42", max_age=HOUR)
            sender = threading.Thread(target=http.post, args=(api.url,), kwargs={"extensions": {"semel": intent}})
            sender.start()
            until(lambda: api.requests)
            (first,) = journal.pending()
            until(lambda: journal.pending()[0].lease_until_ms > first.lease_until_ms + 300, "it was not renewed")
            with client(journal, Retry(deadline=0.1)) as other, pytest.raises(InProgress, match="another sender"):
                other.post(api.url, extensions={"semel": intent})
            api.may_answer.set()
            sender.join()
        assert len(api.requests) == 1


def test_another_body_under_the_name_is_refused_and_both_digests_are_named(journal: Journal) -> None:
    with serving() as api, client(journal) as http:
        intent = journal.intent("pay:42", max_age=HOUR)
        http.post(api.url, json={"amount": 5}, extensions={"semel": intent})
        entry = journal.read("pay:42")
        assert entry is not None
        with pytest.raises(
            KeyReused,
            match=f"digest {entry.request.digest[:16]}, and this request has [0-9a-f]{{16}}: the body differs",
        ):
            http.post(api.url, json={"amount": 6}, extensions={"semel": intent})
        assert len(api.requests) == 1


def test_an_unknown_outcome_is_returned_and_then_nothing_is_sent_until_it_is_forgotten(journal: Journal) -> None:
    with serving("problem outcome-unknown") as api, client(journal) as http:
        intent = journal.intent("pay:42", max_age=HOUR)
        assert http.post(api.url, extensions={"semel": intent}).status_code == 409
        with pytest.raises(Indeterminate, match="'pay:42': the server could not say how the operation ended"):
            http.post(api.url, extensions={"semel": intent})
        assert [entry.state for entry in journal.pending()] == [IntentState.DOUBTFUL]
        assert len(api.requests) == 1
        assert journal.forget("pay:42")
        assert not journal.forget("pay:42")
        assert http.post(api.url, extensions={"semel": intent}).status_code == 201
        assert len({key for _, key, _ in api.requests}) == 2


def test_an_intent_that_is_too_old_is_indeterminate(journal: Journal) -> None:
    with serving("drop") as api, client(journal, Retry(attempts=1)) as http:
        intent = journal.intent("pay:42", max_age=timedelta(milliseconds=1))
        with pytest.raises(httpx.RemoteProtocolError):
            http.post(api.url, extensions={"semel": intent})
        with pytest.raises(Indeterminate, match="older than its max_age"):
            http.post(api.url, extensions={"semel": intent})
        assert len(api.requests) == 1


class RefreshedToken(httpx.Auth):
    """Sends the request once more after a 401, as a client does that renews its token."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        response = yield request
        if response.status_code == 401:
            yield request


def test_a_request_that_is_sent_anew_after_a_401_keeps_its_key() -> None:
    with serving("drop", "refuse 401") as api, client() as http:
        response = http.post(api.url, auth=RefreshedToken())
        assert report_of(response).replayed
        assert (len(api.requests), list(api.effects.values())) == (3, [1])
        request = http.build_request("POST", api.url)
        http.send(request)
        http.send(request)
        assert list(api.effects.values()) == [1, 1, 1], "a request that was not refused has a new key each time"


def test_an_interrupted_sender_leaves_its_intent(journal: Journal) -> None:
    class Interrupted(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            raise KeyboardInterrupt

    http = httpx.Client(transport=IdempotentTransport(Interrupted(), journal=journal))
    with http, pytest.raises(KeyboardInterrupt):
        http.post("http://127.0.0.1/", extensions={"semel": journal.intent("pay:42", max_age=HOUR)})
    (left,) = journal.pending()
    assert (left.owner, left.error) == ("", "the sender was interrupted")


def test_an_error_in_the_callers_own_transport_is_not_repeated(journal: Journal) -> None:
    sent: list[httpx.Request] = []

    class Broken(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            sent.append(request)
            raise ZeroDivisionError

    http = httpx.Client(transport=IdempotentTransport(Broken(), journal=journal))
    with http, pytest.raises(ZeroDivisionError):
        http.post("http://127.0.0.1/", extensions={"semel": journal.intent("pay:42", max_age=HOUR)})
    assert (len(sent), journal.pending()[0].owner) == (1, "")


def test_secrets_are_not_in_the_file(tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path}/journal.db")
    with serving() as api, client(journal, headers={"Authorization": "s3cret", "X-Api-Key": "s3cret"}) as http:
        http.post(api.url, extensions={"semel": journal.intent("pay:42", max_age=HOUR)})
        assert all(b"s3cret" not in each.read_bytes() for each in tmp_path.iterdir())


def test_a_body_that_is_too_large_for_the_journal_is_not_sent(journal: Journal) -> None:
    with serving() as api, client(journal) as http:
        with pytest.raises(ValueError, match="a journal keeps at most 1048576: upload it first"):
            http.post(api.url, content=b"x" * (BODY_MAX + 1), extensions={"semel": journal.intent("a", max_age=HOUR)})
        assert not api.requests


def test_what_is_no_intent_is_refused(journal: Journal) -> None:
    with serving() as api, client(Journal("memory://")) as http:
        for wrong, says in (
            ("pay:42", "belongs to an intent of a journal, not to str 'pay:42'"),
            (journal.intent("a", max_age=HOUR), "another"),
        ):
            with pytest.raises(Misuse, match=says):
                http.post(api.url, extensions={"semel": wrong})
        assert not api.requests


@pytest.mark.parametrize(
    "url", ["journal.db", "sqlite://", "sqlite:///", "sqlite:///a?x=1", "memory://x", "redis:///0"]
)
def test_what_is_no_journal_url(url: str) -> None:
    with pytest.raises(StoreMisconfigured, match=r"Write sqlite:///journal\.db, or memory://"):
        Journal(url)


def test_purge_deletes_what_was_answered(journal: Journal) -> None:
    with serving() as api, client(journal) as http:
        http.post(api.url, extensions={"semel": journal.intent("a", max_age=HOUR)})
    assert journal.purge(older=HOUR) == 0
    assert journal.purge(older=timedelta(0)) == 1
    assert journal.read("a") is None


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"deadline": 0}, {"pause_max": -1}, {"retry_after_max": 1e9}])
def test_retry_has_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))} must be (a whole number )?between"):
        Retry(**wrong)  # type: ignore[arg-type]
