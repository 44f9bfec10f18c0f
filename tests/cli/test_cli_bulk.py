"""`semel keys resolve-many`: export, edit, import. What was looked at is what is resolved, and effects are counted."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cli.calls import HOUR_MS, SCOPE, Service, claimed, finished, run, run_json, there, unknown
from semel import Filter, Key, open_store
from semel.core.records import Acquired
from semel.errors import StoreUnavailable
from semel.store import Store
from semel.stores.sqlite.store import SqliteStore
from waiting import until

Line = dict[str, Any]
DONE = {"verdict": "answer", "answer": {"status": 201, "json": {"paid": 10}}}
NOT_DONE = {"verdict": "nothing-done"}


def exported(url: str, *words: str) -> list[Line]:
    done = run("stuck", "--json-lines", *words, store=url)
    return [json.loads(line) for line in done.stdout.splitlines()]


def file_of(tmp_path: Path, lines: list[Line]) -> str:
    path = tmp_path / "verdicts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def interrupted(service: Service, names: list[str]) -> None:
    """Let the service claim each key as it does, and die at once."""
    for name in names:
        service.post(name)
    for record in service.store.scan(Filter()).records:  # type: ignore[attr-defined]
        assert service.store.remove(record)  # type: ignore[attr-defined]
        again = service.store.claim(
            record.key, record.fingerprint, owner="dead", lease_ms=1, retention_ms=HOUR_MS, takeover=False
        )
        assert isinstance(again, Acquired)
    service.effects.clear()
    until(lambda: len(service.store.scan(Filter("unknown")).records) == len(names))  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [(), ("--names",)], ids=["digests", "names"])
@pytest.mark.parametrize("source", [("stuck",), ("keys", "list", "--state", "unknown")], ids=" ".join)
def test_export_edit_import(url: str, store: Store, tmp_path: Path, source: tuple[str, ...], words: tuple[str]) -> None:
    service = Service(url)
    interrupted(service, [f"order-{number}" for number in range(6)])
    printed = run(*source, "--json-lines", *words, store=url).stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    assert len(lines) == 6
    done = {Key("", "", f"order-{number}").name_digest for number in range(4)}
    edited = [line | (DONE if line["digest"] in done else NOT_DONE) for line in lines]
    path = file_of(tmp_path, edited)
    dry = run_json("keys", "resolve-many", path, "--dry-run", store=url)
    assert (dry["changed"], dry["totals"]) == (0, {"would be resolved": 6})
    assert run("stuck", store=url).exit_code == 1, "nothing was changed"
    told = run_json("keys", "resolve-many", path, "--yes", store=url)
    assert (told["changed"], told["totals"]) == (6, {"resolved": 6})
    assert [each["line"] for each in told["lines"]] == [1, 2, 3, 4, 5, 6]
    assert run("stuck", store=url).exit_code == 0
    for number in range(4):
        assert service.post(f"order-{number}") == ("201 Created", b'{"paid":10}')
    assert service.effects == [], "what was done is not done again"
    for number in (4, 5):
        assert service.post(f"order-{number}")[0] == "200 OK"
    assert service.effects == ["order-4", "order-5"]


def test_the_same_file_again_is_refused_line_by_line(url: str, store: Store, tmp_path: Path) -> None:
    unknown(store, Key("shop", SCOPE, "order-1"))
    path = file_of(tmp_path, [line | DONE for line in exported(url)])
    assert run("keys", "resolve-many", path, "--yes", store=url).exit_code == 0
    again = run_json("keys", "resolve-many", path, "--yes", store=url, status=1)
    assert again["totals"] == {"refused": 1}
    assert "resolved or deleted" in again["lines"][0]["reason"]


def test_what_changed_since_it_was_looked_at_is_refused_and_the_rest_is_not(
    url: str, store: Store, tmp_path: Path
) -> None:
    names = ("same", "taken-over", "finished", "running", "deleted")
    records = {name: unknown(store, Key("shop", SCOPE, name)) for name in names}
    lines = [line | NOT_DONE for line in exported(url, "--names", "--sort", "created")]
    assert [line["name"] for line in lines] == list(names)
    for name, lease_ms in (("taken-over", 1), ("finished", HOUR_MS), ("running", HOUR_MS)):
        taken = store.claim(
            records[name].key, "v1:x", owner="second", lease_ms=lease_ms, retention_ms=HOUR_MS, takeover=True
        )
        assert isinstance(taken, Acquired)
        if name == "finished":
            finish = there(store, records[name].key)
            assert store.release(taken.lease)
            assert finish.attempt == 2
    store.remove(records["deleted"])  # type: ignore[attr-defined]
    until(lambda: any(each.attempt == 2 for each in store.scan(Filter("unknown")).records))  # type: ignore[attr-defined]
    told = run_json("keys", "resolve-many", file_of(tmp_path, lines), "--yes", store=url, status=1)
    assert [each["result"] for each in told["lines"]] == ["resolved", *["refused"] * 4]
    assert "another attempt" in told["lines"][1]["reason"]
    left = {record["name"]: record["attempt"] for record in run_json("keys", "list", "--names", store=url)["records"]}
    assert left == {"taken-over": 2, "finished": 2, "running": 2}


BAD: dict[str, tuple[Callable[[Line], Any], str]] = {
    "no verdict": (lambda line: line, "has no verdict"),
    "another verdict": (lambda line: line | {"verdict": "done"}, "'done'"),
    "misspelt": (lambda line: line | {"verdicts": "nothing-done"}, "did you mean verdict?"),
    "both": (lambda line: line | DONE | NOT_DONE, "one or the other"),
    "no answer": (lambda line: line | {"verdict": "answer"}, "answer must be an object"),
    "no body": (lambda line: line | {"verdict": "answer", "answer": {"status": 200}}, "one of body"),
    "two bodies": (lambda line: line | {"verdict": "answer", "answer": {"body": "", "json": 1}}, "one of body"),
    "status": (lambda line: line | {"verdict": "answer", "answer": {"body": "", "status": 99}}, "answer.status"),
    "status true": (lambda line: line | {"verdict": "answer", "answer": {"body": "", "status": True}}, "answer.status"),
    "base64": (lambda line: line | {"verdict": "answer", "answer": {"body_base64": "!"}}, "answer.body_base64"),
    "headers": (lambda line: line | {"verdict": "answer", "answer": {"body": "", "headers": {"a": "b"}}}, "pairs"),
    "header": (lambda line: line | {"verdict": "answer", "answer": {"body": "", "headers": [["a", "b\n"]]}}, "pairs"),
    "answer's member": (lambda line: line | {"verdict": "answer", "answer": {"bod": ""}}, "did you mean answer.body?"),
    "no owner": (lambda line: {k: v for k, v in (line | NOT_DONE).items() if k != "owner"}, "owner is missing"),
    "no attempt": (lambda line: line | NOT_DONE | {"attempt": None}, "attempt is missing"),
    "digest": (lambda line: line | NOT_DONE | {"digest": "12"}, "digest is not"),
    "name": (lambda line: line | NOT_DONE | {"name": "another"}, "name and digest"),
    "no object": (lambda line: [line], "not a JSON object"),
    "nan": (lambda line: line | {"verdict": "answer", "answer": {"json": float("nan")}}, "NaN"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD.keys())
def test_one_bad_line_and_nothing_is_changed(
    file_url: str, file_store: Store, tmp_path: Path, spoil: Callable[[Line], Any], reason: str
) -> None:
    records = [unknown(file_store, Key("shop", SCOPE, f"order-{number}")) for number in range(3)]
    lines = exported(file_url)
    path = file_of(tmp_path, [lines[0] | NOT_DONE, lines[1] | DONE, spoil(lines[2])])
    told = run_json("keys", "resolve-many", path, "--yes", store=file_url, status=2)
    assert told["changed"] == 0
    [bad] = told["lines"]
    assert (bad["line"], bad["result"]) == (3, "invalid")
    assert reason in bad["reason"]
    assert "Nothing was changed" in run("keys", "resolve-many", path, "--yes", store=file_url).stderr
    assert [file_store.get(record.key) for record in records] == records


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not json\n", "not JSON"),
        ('{"a": 1, "a": 2}\n', "twice"),
        ("[" * 100_000 + "\n", "not JSON"),
        ("\xff\xfe\n", "not JSON"),
        ('{"tenant": "\\ud800"}\n', "is missing"),
    ],
    ids=["words", "twice", "deep", "bytes", "surrogate"],
)
def test_lines_that_no_list_prints(file_url: str, file_store: Store, tmp_path: Path, text: str, reason: str) -> None:
    unknown(file_store, Key("shop", SCOPE, "order-1"))
    path = tmp_path / "verdicts.jsonl"
    path.write_bytes(text.encode("latin-1"))
    done = run("keys", "resolve-many", str(path), "--yes", store=file_url)
    assert done.exit_code == 2, done.output
    assert reason in done.stdout


def test_two_verdicts_on_one_record(file_url: str, file_store: Store, tmp_path: Path) -> None:
    before = unknown(file_store, Key("shop", SCOPE, "order-1"))
    [line] = exported(file_url)
    path = file_of(tmp_path, [line | DONE, line | NOT_DONE])
    told = run_json("keys", "resolve-many", path, "--yes", store=file_url, status=2)
    assert told["lines"][0]["reason"] == "line 1 is about the same record"
    assert file_store.get(before.key) == before


def test_every_line_gets_a_line_and_the_whole_a_summary(url: str, store: Store, tmp_path: Path) -> None:
    unknown(store, Key("shop", SCOPE, "order-1"))
    gone = unknown(store, Key("shop", SCOPE, "order-2"))
    lines = exported(url, "--sort", "created")
    store.remove(gone)  # type: ignore[attr-defined]
    done = run("keys", "resolve-many", file_of(tmp_path, [line | NOT_DONE for line in lines]), "--yes", store=url)
    first, second, summary = done.stdout.splitlines()
    assert first == f"line 1: {lines[0]['digest']} resolved"
    assert second.startswith(f"line 2: {lines[1]['digest']} refused: ")
    assert summary == "1 resolved, 1 refused."


def test_without_yes_nothing_is_done(file_url: str, file_store: Store, tmp_path: Path) -> None:
    before = unknown(file_store, Key("shop", SCOPE, "order-1"))
    path = file_of(tmp_path, [line | NOT_DONE for line in exported(file_url)])
    done = run("keys", "resolve-many", path, store=file_url)
    assert done.exit_code == 1
    assert "End the unknown outcome of 1 record, so that repeats of 0 get" in done.stderr
    assert file_store.get(before.key) == before


def test_a_pipe_and_an_empty_file(file_url: str, file_store: Store) -> None:
    before = unknown(file_store, Key("shop", SCOPE, "order-1"))
    [line] = exported(file_url)
    command = [sys.executable, "-m", "semel", "keys", "resolve-many", "-", "--yes", "--store", file_url]
    for text, status, said in (("\n", 0, "no lines"), (json.dumps(line | NOT_DONE), 0, "1 resolved.")):
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, said in done.stdout) == (status, True), done.stderr
    assert file_store.get(before.key) is None


def test_a_store_that_goes_away_in_between(
    file_url: str, file_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done is told, what may be done is told, and the file can be given again."""
    for number in range(4):
        unknown(file_store, Key("shop", SCOPE, f"order-{number}"))
    path = file_of(tmp_path, [line | NOT_DONE for line in exported(file_url)])
    real, calls = SqliteStore.resolve, 0

    def resolve(self: SqliteStore, *given: Any, **named: Any) -> bool:
        nonlocal calls
        calls += 1
        done = real(self, *given, **named)
        if calls == 2:
            raise StoreUnavailable("the answer was lost")
        return done

    monkeypatch.setattr(SqliteStore, "resolve", resolve)
    told = run_json("keys", "resolve-many", path, "--yes", store=file_url, status=3)
    assert [each["result"] for each in told["lines"]] == ["resolved", "uncertain", "not tried", "not tried"]
    again = run_json("keys", "resolve-many", path, "--yes", store=file_url, status=1)
    assert [each["result"] for each in again["lines"]] == ["refused", "refused", "resolved", "resolved"]
    assert run("stuck", store=file_url).exit_code == 0


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ({"body": "é\n", "headers": [["Content-Type", "text/plain"]]}, "200 OK", "é\n".encode()),
        ({"body_base64": "/wA=", "status": 402}, "402 Payment Required", b"\xff\x00"),
        ({"json": None}, "200 OK", b"null"),
    ],
)
def test_answers_of_every_kind(
    file_url: str, file_store: Store, tmp_path: Path, answer: Line, status: str, body: bytes
) -> None:
    service = Service(file_url)
    interrupted(service, ["order-1"])
    lines = [line | {"verdict": "answer", "answer": answer} for line in exported(file_url)]
    assert run("keys", "resolve-many", file_of(tmp_path, lines), "--yes", store=file_url).exit_code == 0
    assert service.post("order-1") == (status, body)
    assert service.effects == []


def test_lines_and_one_document_are_not_both(file_url: str, file_store: Store) -> None:
    claimed(file_store, Key("shop", SCOPE, "order-1"))
    for words in (("stuck",), ("keys", "list")):
        assert run(*words, "--json", "--json-lines", store=file_url).exit_code == 2


def test_every_command_that_changes_has_json(url: str, store: Store) -> None:
    unknown(store, Key("shop", SCOPE, "a"))
    unknown(store, Key("shop", SCOPE, "b"))
    for name in "cdef":
        finished(store, Key("shop", SCOPE, name))
    live = claimed(store, Key("shop", SCOPE, "live"))
    done = {"changed": 1, "refused": [], "more": False}
    assert run_json("keys", "resolve", "a", "--nothing-done", "--yes", store=url) == {"action": "resolve", **done}
    assert run_json("keys", "release", "b", "--yes", store=url) == {"action": "release", **done}
    assert run_json("keys", "delete", "c", "--yes", store=url) == {"action": "delete", **done}
    assert run_json("keys", "expire", "d", "--yes", store=url) == {"action": "expire", **done}
    assert run_json("keys", "expire", "--tenant", "none", "--yes", store=url) == {
        "action": "expire",
        **done,
        "changed": 0,
    }
    bounded = run_json("keys", "expire", "--tenant", "shop", "--limit", "1", "--yes", store=url)
    assert bounded == {"action": "expire", **done, "more": True}
    for command, words in (("resolve", ("--nothing-done",)), ("delete", ()), ("release", ()), ("expire", ())):
        refused = run_json("keys", command, "live", *words, "--yes", store=url, status=1)
        assert (refused["action"], refused["changed"]) == (command, 0)
        assert "lease is live" in refused["refused"][0]["reason"] or command == "expire"
        assert refused["refused"][0]["digest"] == live.key.name_digest
    until(lambda: run_json("purge", store=url) == {"action": "purge", "changed": 0})
    migrated = run_json("migrate", store=url)
    assert (migrated["action"], migrated["applied"]) == ("migrate", [])


def test_migrate_tells_what_it_applied(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert run_json("migrate", store=url)["applied"] == [
        {"number": 1, "title": "records"},
        {"number": 2, "title": "messages"},
    ]
    assert run("migrate", "--sql", "--json", store=url).exit_code == 2
    with closing(open_store(url)) as store:
        claimed(store, Key("shop", SCOPE, "order-1"))


def test_one_record_is_not_some_records(file_url: str, file_store: Store) -> None:
    key = Key("shop", SCOPE, "order-1")
    record = finished(file_store, key)
    assert file_store.expire(record)  # type: ignore[attr-defined]
    assert run("purge", store=file_url).stdout == "Purged 1 record.\n"
