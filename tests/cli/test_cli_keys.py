"""`semel keys` on every store: what is shown, and what an operator's decisions do to the next request."""

import hashlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cli.calls import SCOPE, Service, claimed, finished, run, run_json, there, unknown
from semel import Key
from semel.store import Store

KEY = Key("shop", SCOPE, "order-1")


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def test_list_shows_what_matches_and_no_names(url: str, store: Store) -> None:
    finished(store, KEY)
    unknown(store, Key("shop", SCOPE, "order-2"))
    claimed(store, Key("other", "GET /\x1b[2J", "order-3"))
    shown = run("keys", "list", store=url)
    assert shown.exit_code == 0
    assert "order-" not in shown.output
    assert "GET /\\x1b[2J" in shown.output, "a scope must not play with the terminal"
    assert len(shown.output.splitlines()) == 4
    for words, names in {
        (): {"order-1", "order-2", "order-3"},
        ("--state", "succeeded"): {"order-1"},
        ("--state", "unknown"): {"order-2"},
        ("--state", "in_progress"): {"order-3"},
        ("--tenant", "shop"): {"order-1", "order-2"},
        ("--scope", SCOPE, "--prefix", "order-2"): {"order-2"},
        ("--older-than", "1h"): set(),
    }.items():
        found = run_json("keys", "list", "--names", *words, store=url)
        assert {record["name"] for record in found["records"]} == names, words
        assert found["more"] is False
    few = run_json("keys", "list", "--limit", "2", store=url)
    assert (len(few["records"]), few["more"]) == (2, True)
    assert {record["name"] for record in few["records"]} == {None}


def test_show_tells_the_stored_answer(url: str, store: Store) -> None:
    finished(store, KEY)
    found = run_json("keys", "show", "order-1", store=url)
    assert (found["state"], found["attempt"], found["digest"]) == ("succeeded", 1, digest("order-1"))
    assert found["name"] is None
    assert found["answer"]["status"] == 201
    assert found["answer"]["headers"] == [["content-type", "application/json"]]
    assert (found["answer"]["body"], found["answer"]["truncated"]) == ('{"paid": 10}', False)
    shown = run("keys", "show", digest("order-1"), "--digest", "--body-max", "4", store=url)
    assert "HTTP 201" in shown.output
    assert '{"pa' in shown.output
    assert "paid" not in shown.output


def test_a_key_that_is_not_named_well_enough(url: str, store: Store) -> None:
    finished(store, KEY)
    finished(store, Key("other", SCOPE, "order-1"))
    ambiguous = run("keys", "show", "order-1", store=url)
    assert ambiguous.exit_code == 2
    assert "--tenant 'other'" in ambiguous.output
    assert run_json("keys", "show", "order-1", "--tenant", "shop", store=url)["tenant"] == "shop"
    assert run("keys", "show", "order-1", "--tenant", "shop", "--scope", SCOPE, store=url).exit_code == 0
    assert run("keys", "show", "order-9", store=url).exit_code == 1
    assert run("keys", "show", "order", store=url).exit_code == 1, "a beginning of a name is not the name"


def test_an_unknown_outcome_is_resolved_with_its_answer(url: str, store: Store, tmp_path: Path) -> None:
    service = Service(url)
    service.interrupted("order-1")
    assert service.post("order-1")[0].startswith("409")
    receipt = tmp_path / "receipt.json"
    receipt.write_bytes(b'{"paid": 10}')
    words = ("keys", "resolve", "order-1", "--answer", str(receipt), "--status", "201", "--header", "x-found: yes")
    assert run(*words, "--yes", store=url).exit_code == 0
    assert service.post("order-1") == ("201 Created", b'{"paid": 10}')
    assert service.effects == []
    again = run(*words, "--yes", store=url)
    assert again.exit_code == 1
    assert "finished" in again.output


@pytest.mark.parametrize("words", [("resolve", "order-1", "--nothing-done"), ("release", "order-1")])
def test_an_unknown_outcome_is_ended_because_nothing_was_done(url: str, store: Store, words: tuple[str, ...]) -> None:
    service = Service(url)
    service.interrupted("order-1")
    assert run("keys", *words, "--yes", store=url).exit_code == 0
    assert service.post("order-1") == ("200 OK", b"done 1")
    assert len(service.effects) == 1


@pytest.mark.parametrize("command", ["expire", "delete"])
def test_a_finished_record_is_given_up(url: str, store: Store, command: str) -> None:
    service = Service(url)
    first = service.post("order-1")
    assert service.post("order-1") == first
    assert run("keys", command, "order-1", "--yes", store=url).exit_code == 0
    assert service.post("order-1") == ("200 OK", b"done 2")
    assert len(service.effects) == 2


def test_expire_leaves_unknown_outcomes_alone_and_delete_does_not(url: str, store: Store) -> None:
    record = unknown(store, KEY)
    refused = run("keys", "expire", "order-1", "--yes", store=url)
    assert refused.exit_code == 1
    assert store.get(KEY) == record
    assert run("keys", "delete", "order-1", "--yes", store=url).exit_code == 0
    assert store.get(KEY) is None


@pytest.mark.parametrize("command", ["release", "expire", "delete"])
def test_a_live_lease_is_never_touched(url: str, store: Store, command: str) -> None:
    claimed(store, KEY)
    before = there(store, KEY)
    refused = run("keys", command, "order-1", "--yes", store=url)
    assert refused.exit_code == 1
    assert "lease is live" in refused.output
    assert run("keys", command, "--tenant", "shop", "--yes", store=url).exit_code == 0
    assert run("keys", "resolve", "order-1", "--nothing-done", "--yes", store=url).exit_code == 1
    assert store.get(KEY) == before


def test_many_are_deleted_and_others_are_not(url: str, store: Store) -> None:
    for number in range(5):
        finished(store, Key("closed", SCOPE, f"{number}"))
    finished(store, KEY)
    asked = run("keys", "delete", "--tenant", "closed", store=url)
    assert asked.exit_code == 1
    assert "Delete 5 records" in asked.output
    assert "--yes" in asked.output
    assert len(run_json("keys", "list", store=url)["records"]) == 6, "nobody said yes"
    assert "Deleted 3 records" in run("keys", "delete", "--tenant", "closed", "--limit", "3", "--yes", store=url).output
    assert "Deleted 2 records" in run("keys", "delete", "--tenant", "closed", "--yes", store=url).output
    assert [each["tenant"] for each in run_json("keys", "list", store=url)["records"]] == ["shop"]


@pytest.mark.parametrize("command", ["release", "expire", "delete"])
def test_everything_is_never_meant_by_saying_nothing(file_url: str, file_store: Store, command: str) -> None:
    finished(file_store, KEY)
    assert run("keys", command, "--yes", store=file_url).exit_code == 2
    assert file_store.get(KEY) is not None


@pytest.mark.parametrize("command", ["release", "expire", "delete"])
@pytest.mark.parametrize(
    "words",
    [
        ("order-1", "--state", "failed"),
        ("order-1", "--older-than", "1h"),
        ("order-1", "--prefix", "x"),
        ("--tenant", "shop", "--digest"),
    ],
    ids=["state", "age", "prefix", "digest of nothing"],
)
def test_nothing_that_was_said_is_ignored(
    file_url: str, file_store: Store, command: str, words: tuple[str, ...]
) -> None:
    finished(file_store, KEY)
    assert run("keys", command, *words, "--yes", store=file_url).exit_code == 2
    assert file_store.get(KEY) is not None


@pytest.mark.parametrize(
    "words",
    [("keys", "list"), ("keys", "show", "order-1"), ("keys", "delete", "order-1"), ("stuck",), ("stats",), ("purge",)],
)
def test_a_file_that_is_not_there_is_not_made_by_looking(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(*words, store=f"sqlite:///{tmp_path}/misspelt%20.db")
    assert done.exit_code == 2, "else a check of a misspelt file would say that all is well"
    assert "there is no such file" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [(), ("--answer", "-", "--nothing-done"), ("--answer", "-", "--header", "nocolon"), ("--retention", "soon")],
    ids=["no outcome", "two outcomes", "bad header", "bad duration"],
)
def test_resolve_that_says_too_little_or_too_much(file_url: str, file_store: Store, words: tuple[str, ...]) -> None:
    before = unknown(file_store, KEY)
    assert run("keys", "resolve", "order-1", "--yes", *words, store=file_url).exit_code == 2
    assert file_store.get(KEY) == before


@pytest.mark.parametrize(("said", "status", "left"), [("n", 1, True), ("y", 0, False)])
def test_a_person_is_asked(file_url: str, file_store: Store, said: str, status: int, left: bool) -> None:
    finished(file_store, KEY)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "semel", "keys", "delete", "order-1", "--store", file_url]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as process:
        os.write(ours, f"{said}\n".encode())
        printed = process.communicate(timeout=60)[0]
    os.close(ours)
    os.close(theirs)
    assert "Delete 1 record" in printed
    assert (process.returncode, file_store.get(KEY) is not None) == (status, left)
