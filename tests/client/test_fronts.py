"""What holds for every adapter, against a server that takes effect and then fails. Effects are counted there."""

from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from client.api import serving
from client.fronts import Open
from semel.client import SQUARE, Journal, Retry
from semel.errors import KeyReused, Misuse
from servers.certificates import write_certificate

HOUR = timedelta(hours=1)
ONCE = Retry(attempts=1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


@pytest.mark.parametrize("trouble", ["drop", "half", "502", "refuse 503", "problem in-progress"])
def test_a_request_that_took_effect_and_failed_is_sent_again(open_front: Open, trouble: str) -> None:
    with serving(trouble, trouble) as api:
        received = open_front().post(api.url, b'{"amount": 5}')
        assert (received.status, received.body) == (201, b"paid")
        assert list(api.effects.values()) == [1]
        assert (len(api.requests), len(set(api.requests))) == (3, 1), "the same key, the same bytes"
        assert (received.report.attempts, f'"{received.report.key}"') == (3, api.requests[0][1])
        assert received.report.replayed == (trouble != "refuse 503")


def test_each_request_has_a_key_of_its_own_and_the_callers_key_stays(open_front: Open) -> None:
    with serving("drop") as api:
        front = open_front()
        front.post(api.url, headers={"Idempotency-Key": "mine"})
        front.post(api.url)
        front.post(api.url)
    assert [key for _, key, _ in api.requests[:2]] == ["mine", "mine"]
    assert (len(api.effects), set(api.effects.values())) == (3, {1})


def test_an_idempotent_method_is_repeated_without_a_key(open_front: Open) -> None:
    with serving("drop") as api:
        assert open_front().put(api.url).status == 201
        assert [key for _, key, _ in api.requests] == ["", ""]


def test_the_error_of_the_library_is_raised_and_the_intent_stays_open(open_front: Open, journal: Journal) -> None:
    with serving(*["drop"] * 4) as api:
        front = open_front(journal=journal)
        with pytest.raises(front.lost):
            front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        assert (len(api.requests), list(api.effects.values())) == (4, [1])
        (left,) = journal.pending()
        assert (left.attempts, left.owner) == (4, "")
        assert front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR)).report.replayed
        assert list(api.effects.values()) == [1]
    fresh = open_front(journal=journal)
    with pytest.raises(fresh.lost):
        fresh.post(api.url, intent=journal.intent("pay:43", max_age=HOUR))
    assert journal.pending()[0].error.startswith("no connection: the request cannot have arrived")


def test_an_intent_has_its_answer_without_a_request_even_in_the_next_process(open_front: Open, tmp_path: Path) -> None:
    with serving() as api:
        for run in range(3):
            with closing(Journal(f"sqlite:///{tmp_path}/journal.db")) as journal:
                with journal.intent("pay:42", max_age=HOUR) as intent:
                    received = open_front(journal=journal).post(api.url, intent=intent)
                assert (received.status, received.body, received.headers["X-Number"]) == (201, b"paid", "1")
                assert (received.report.attempts, received.report.replayed) == ((0, True) if run else (1, False))
        assert [(path, body) for path, _, body in api.requests] == [("/pay", b"{}")]


def test_what_a_dead_process_left_is_sent_again_as_it_was(open_front: Open, journal: Journal) -> None:
    with serving("drop") as api:
        front = open_front(journal=journal, retry=ONCE)
        with pytest.raises(front.lost):
            front.post(api.url, b'{"amount": 5}', intent=journal.intent("pay:42", max_age=HOUR))
        (left,) = journal.pending()
        with journal.resume(left) as intent:
            asked = intent.request
            received = front.send(asked.method, asked.url, asked.body, dict(asked.headers), intent)
        assert (received.body, received.report.replayed) == (b"paid", True)
        assert (len(set(api.requests)), list(api.effects.values())) == (1, [1])


@pytest.mark.parametrize("written", ["mine", '"mine"'])
def test_a_key_that_the_caller_wrote_is_sent_again_as_it_was_written(
    open_front: Open, journal: Journal, written: str
) -> None:
    for resumed in (True, False):
        name = f"pay:{resumed}"
        with serving("drop") as api:
            front = open_front(journal=journal, retry=ONCE)
            with pytest.raises(front.lost):
                front.post(api.url, headers={"Idempotency-Key": written}, intent=journal.intent(name, max_age=HOUR))
            (left,) = journal.pending()
            asked = left.request
            if resumed:
                front.send("POST", api.url, asked.body, dict(asked.headers), journal.resume(left))
            else:
                front.post(api.url, intent=journal.intent(name, max_age=HOUR))
            assert [key for _, key, _ in api.requests] == [written, written]
            assert list(api.effects.values()) == [1]


@pytest.mark.filterwarnings("error")
def test_an_intent_without_a_request_is_told(open_front: Open, journal: Journal) -> None:
    with serving() as api, closing(Journal("memory://")) as other:
        front = open_front(journal=other)
        unsent = pytest.warns(RuntimeWarning, match="no request was sent as intent 'pay:42', so nothing protects it")
        with unsent, journal.intent("pay:42", max_age=HOUR):
            front.post(api.url)
        unsent = pytest.warns(RuntimeWarning, match="send a POST through an adapter")
        # urllib3 sends its GETs itself, and they have no report.
        with unsent, other.intent("a", max_age=HOUR) as intent, suppress(Misuse):
            front.send("GET", api.url, None, {}, intent)
        unsent = pytest.warns(RuntimeWarning, match="send a POST through an adapter")
        with unsent, other.intent("c", max_age=HOUR) as intent, suppress(Misuse):
            front.send("OPTIONS", api.url, None, {}, intent)
        with other.intent("pay:42", max_age=HOUR) as intent:
            front.post(api.url, intent=intent)
        with pytest.raises(KeyError), other.intent("b", max_age=HOUR):
            raise KeyError


def test_another_body_under_the_name_is_refused(open_front: Open, journal: Journal) -> None:
    with serving() as api:
        front, intent = open_front(journal=journal), journal.intent("pay:42", max_age=HOUR)
        front.post(api.url, b"5", intent=intent)
        with pytest.raises(KeyReused, match="the name of the intent belongs to another request; nothing was sent"):
            front.post(api.url, b"6", intent=intent)
        assert len(api.requests) == 1


def test_a_refusal_names_what_differs_and_the_way_out(open_front: Open, journal: Journal) -> None:
    with serving("answer", "drop") as api:
        front, done, left = open_front(journal=journal, retry=ONCE), *(f"pay:{name}" for name in ("done", "left"))
        front.post(api.url, intent=journal.intent(done, max_age=HOUR))
        with pytest.raises(front.lost):
            front.post(api.url, intent=journal.intent(left, max_age=HOUR))
        for name, url, headers, says in (
            (done, f"{api.url}?x=1", {}, "the URL differs. A new operation needs a new name$"),
            (done, api.url, {"content-type": "a/b"}, "the content type differs. A new operation needs a new name$"),
            (done, api.url, {"idempotency-key": "mine"}, "has the key .{36}, and this request has mine: leave the key"),
            (left, f"{api.url}?x=1", {}, "may have arrived; .*did not take effect, journal.forget.'pay:left'. frees"),
        ):
            with pytest.raises(KeyReused, match=says):
                front.send(
                    "POST",
                    url,
                    b"{}",
                    {"content-type": "application/json"} | headers,
                    journal.intent(name, max_age=HOUR),
                )
        assert len(api.requests) == 2


def test_an_intent_of_another_journal_is_refused(open_front: Open, journal: Journal) -> None:
    with serving() as api:
        with pytest.raises(Misuse, match="another journal"):
            open_front(journal=Journal("memory://")).post(api.url, intent=journal.intent("a", max_age=HOUR))
        assert not api.requests


def test_a_generator_is_refused(open_front: Open, kind: str) -> None:
    with serving() as api:
        with pytest.raises(Misuse, match="is a generator or an open file"):
            open_front().post(api.url, chunks() if kind in ("httpx-async", "httpx2-async", "aiohttp") else iter([b"a"]))
        assert not api.requests


async def chunks() -> Any:
    yield b"a"


def test_a_key_in_the_body(open_front: Open, journal: Journal) -> None:
    with serving("drop", "answer", "drop") as api:
        front = open_front(dialect=SQUARE)
        first = front.post(api.url, b'{"amount": 5}').report
        second = front.post(api.url, b'{"amount": 5}', intent=journal.intent("pay:42", max_age=HOUR)).report
        assert [body for _, _, body in api.requests] == [
            f'{{"idempotency_key": "{key}", "amount": 5}}'.encode()
            for key in (first.key, first.key, second.key, second.key)
        ]


@pytest.mark.parametrize("status", [307, 308])
def test_no_key_follows_a_redirect_to_another_origin(
    open_front: Open, kind: str, journal: Journal, status: int
) -> None:
    for headers in ({}, {"Idempotency-Key": "mine"}):
        with serving() as other, serving(f"redirect {status} {other.url}") as api:
            if kind == "aiohttp" and headers:
                with pytest.raises(Misuse, match=f"redirects to another origin, {other.url}"):
                    open_front().post(api.url, headers=headers)
            else:
                open_front().post(api.url, headers=headers)
            assert len(api.requests) == 1
            assert api.requests[0][1] not in [key for _, key, _ in other.requests]
            assert len(other.requests) == (kind != "urllib3" and not (kind == "aiohttp" and bool(headers)))


def test_an_intent_stays_with_its_url(open_front: Open, kind: str, journal: Journal) -> None:
    with serving() as other, serving(f"redirect 307 {other.url}") as api:
        front, intent = open_front(journal=journal), journal.intent("pay:42", max_age=HOUR)
        if kind == "urllib3":
            assert front.post(api.url, intent=intent).status == 307
        else:
            with pytest.raises(KeyReused, match="The service redirected the first request"):
                front.post(api.url, intent=intent)
        assert (len(api.requests), other.requests) == (1, [])


def test_the_page_that_an_answer_leads_to_is_no_part_of_the_intent(
    open_front: Open, kind: str, journal: Journal
) -> None:
    with serving() as other, serving(f"redirect 303 {other.url}") as api:
        front = open_front(journal=journal)
        for _ in range(2):
            received = front.post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
            assert received.status == (303 if kind == "urllib3" else 201)
        assert len(api.requests) == 1
        assert [key for _, key, _ in other.requests] == ([] if kind == "urllib3" else ["", ""])


def test_a_certificate_that_is_not_trusted_is_not_tried_again(
    open_front: Open, journal: Journal, tmp_path: Path
) -> None:
    with serving(certificate=write_certificate(tmp_path)) as api:
        with pytest.raises(Exception, match=r"(?i)certificate"):
            open_front(journal=journal).post(api.url, intent=journal.intent("pay:42", max_age=HOUR))
        (left,) = journal.pending()
        assert (left.attempts, left.error.partition(":")[0]) == (1, "the request could not be made")
