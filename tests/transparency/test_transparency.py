"""The harness itself: a difference is noticed, explained or not, and so is an explanation that matches nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar
from litestar import post as handle_post
from litestar.testing import TestClient
from litestar.testing.client.base import BaseTestClient

from semel.asgi.types import App, Message, Receive, Scope, Send
from transparency.__main__ import main
from transparency.asgi import Keyless, Repeating, protected
from transparency.explanations import Explanation, read_explanations, stale, unexplained
from transparency.fronts import litestar as litestar_front
from transparency.outcomes import Difference, Outcome, compare
from transparency.sources import locked
from transparency.suites import SUITES, missing_source
from transparency.trial import LEDGER, Answer, differences


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    assert not any(name == b"idempotency-key" for name, _ in scope["headers"])
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"1")]})
    await send({"type": "http.response.body", "body": b"made"})


def post(app: App) -> tuple[int, list[str]]:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        pass

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    LEDGER.take()
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return LEDGER.take()


def test_a_request_behind_semel_is_repeated_and_equal() -> None:
    assert post(protected(answering)) == (1, [])


def test_differences_of_a_repeat_are_named() -> None:
    first = Answer("200 OK", [("X-A", "1"), ("Date", "then")], b"one")
    same = Answer("200 OK", [("x-a", "1"), ("Idempotent-Replayed", "true")], b"one")
    other = Answer("201 Created", [("x-a", "2")], b"two")
    assert list(differences(first, same, 1)) == []
    found = " ".join(differences(first, other, 2))
    for text in ("executed", "not marked", "status", "body", "headers"):
        assert text in found


def test_a_middleware_that_executes_a_repeat_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transparency.trial.current_operation", lambda: object())
    repeats, found = post(Repeating(Keyless(answering), answering))
    assert repeats == 1
    assert "executed" in found[0]


def test_outcomes_are_compared_test_by_test() -> None:
    bare = {name: Outcome(name, result) for name, result in (("a", "passed"), ("b", "passed"), ("c", "failed"))}
    wrapped = {"a": Outcome("a", "failed", "why"), "c": Outcome("c", "failed", repeat_differences=["status"])}
    found = [(each.test, each.kind) for each in compare("x", bare, wrapped)]
    assert found == [("a", "first"), ("b", "first"), ("c", "repeat")]


def test_explanations_explain_and_go_stale() -> None:
    seen = [Difference("x", "t::a[1]", "first", ""), Difference("x", "t::b", "repeat", "")]
    known = [Explanation(("t::a[*]", "t::gone"), "because"), Explanation(("t::b",), "because", kind="first")]
    assert unexplained(seen, known) == [seen[1]]
    assert [pattern for _, pattern in stale(seen, known)] == ["t::gone", "t::b"]


def test_the_committed_lists_can_be_read() -> None:
    for name, suite in SUITES.items():
        for explanation in read_explanations(name):
            assert set(explanation.arms) <= set(suite.arms)


def test_a_list_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flask.toml").write_text('[[difference]]\ntests = ["a"]\nwhy = "b"\nwho = "c"\n')
    with pytest.raises(ValueError, match="difference 1"):
        read_explanations("flask", tmp_path)


def test_archives_have_the_locked_hashes() -> None:
    for suite in SUITES.values():
        assert "--hash=sha256:" in locked(suite.package)


def test_a_suite_without_an_archive_needs_a_checkout() -> None:
    assert "--source litestar=FOLDER" in (missing_source("litestar", {}) or "")
    assert missing_source("litestar", {"litestar": "/src"}) is None
    assert missing_source("flask", {}) is None


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """The suites that the command runs, with their sources. Nothing is downloaded, and every suite succeeds."""
    found: list[tuple[str, Path]] = []

    def examine(name: str, suite: object, source: Path, timeout_s: int) -> bool:
        found.append((name, source))
        return True

    monkeypatch.setattr("transparency.__main__.examine", examine)
    monkeypatch.setattr("transparency.__main__.fetch", lambda suite: Path(suite.package))
    return found


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["transparency", *arguments])
    return main()


def test_a_suite_without_a_checkout_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], examined: list[tuple[str, Path]]
) -> None:
    assert run_command(monkeypatch) == 0
    assert [name for name, _ in examined] == [name for name in SUITES if name != "litestar"]
    assert "litestar: not run, its source archive carries no tests; give a checkout" in capsys.readouterr().out


def test_a_suite_is_run_from_its_checkout(
    monkeypatch: pytest.MonkeyPatch, examined: list[tuple[str, Path]], tmp_path: Path
) -> None:
    assert run_command(monkeypatch, "litestar", "flask", "--source", f"litestar={tmp_path}") == 0
    assert examined == [("litestar", tmp_path), ("flask", Path("flask"))]


def test_asking_for_a_suite_without_a_checkout_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], examined: list[tuple[str, Path]]
) -> None:
    with pytest.raises(SystemExit):
        run_command(monkeypatch, "flask", "litestar")
    assert "--source litestar=FOLDER" in capsys.readouterr().err
    assert not examined


@pytest.mark.parametrize("arm", ["outermost", "plugin"])
def test_requests_to_litestar_are_repeated(monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    for patched in (Litestar, BaseTestClient):
        monkeypatch.setattr(patched, "__init__", patched.__init__)  # so that it is put back
    getattr(litestar_front, arm)()

    @handle_post("/")
    async def make() -> str:
        effects.append(1)
        return "made"

    effects: list[int] = []
    LEDGER.take()
    with TestClient(Litestar([make])) as client:
        assert client.post("/").text == "made"
    assert LEDGER.take() == (1, [])
    assert effects == [1]
