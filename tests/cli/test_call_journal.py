"""`semel journal`: what it shows of the intents of `semel call` and of programs, and what it does to them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result

from cli.calls import run
from client.api import serving
from client.protected import protecting
from semel import Policy
from semel.client import Journal, KeyDialect, Retry
from semel.client.httpx import IdempotentTransport
from waiting import until

ONCE = ("--attempts", "1")


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/journal.db"


@pytest.fixture
def semel(journal: str) -> Any:
    """Runs `semel` with the journal."""

    def ran(*words: str, **environment: str) -> Result:
        return run(*words, SEMEL_JOURNAL=journal, **environment)

    return ran


def began(semel: Any, url: str, name: str = "pay:42", *words: str, status: int = 75) -> None:
    assert semel("call", "POST", url, "--intent", name, "-d", "s3cret", *ONCE, *words).exit_code == status


def test_the_list_shows_what_is_pending_or_all(semel: Any, journal: str) -> None:
    with serving("answer", "drop", "problem outcome-unknown", "drop") as api:
        began(semel, api.url, "a", status=0)
        began(semel, f"{api.url}?token=t0psecret", "b")
        began(semel, api.url, "c", status=5)
        began(semel, api.url, "d", "--max-age", "1ms")
        done = semel("journal", "list")
        assert done.exit_code == 0
        head, *rows = [line.split() for line in done.stdout.splitlines()]
        assert head == ["INTENT", "STATE", "ATTEMPTS", "AGE", "METHOD", "URL", "KEY"]
        assert [(row[0], row[1]) for row in rows] == [("b", "open"), ("c", "doubtful"), ("d", "too")]
        assert f"{api.url}?token=…" in rows[0]
        assert api.requests[1][1].strip('"') == rows[0][-1]
        told = json.loads(semel("journal", "list", "--state", "all", "--json").stdout)
        assert [each["intent"] for each in told["intents"]] == ["b", "c", "d", "a"]
        assert "t0psecret" not in json.dumps(told)
        first, answered = told["intents"][0], told["intents"][3]
        assert (first["state"], first["attempts"], first["method"]) == ("open", 1, "POST")
        assert "the connection failed" in first["error"]
        assert (answered["state"], answered["status"], answered["error"]) == ("answered", 201, None)
        assert (told["journal"], told["more"]) == (journal, False)
        for state, names in (("open", ["b", "d"]), ("doubtful", ["c"]), ("answered", ["a"])):
            told = json.loads(semel("journal", "list", "--state", state, "--json").stdout)
            assert [each["intent"] for each in told["intents"]] == names
        short = semel("journal", "list", "--limit", "1")
        assert len(short.stdout.splitlines()) == 2
        assert short.stderr == "There are more than these 1: raise --limit.\n"


def test_an_intent_that_is_being_sent_is_held(semel: Any, journal: str) -> None:
    with serving() as api:
        api.may_answer.clear()
        words = [sys.executable, "-m", "semel", "call", "POST", api.url, "--intent", "pay:42", "--journal", journal]
        sender = subprocess.Popen(words, stdout=subprocess.PIPE)
        until(lambda: api.requests)
        assert " held " in semel("journal", "list").stdout
        assert "wait: a process is sending it" in semel("journal", "show", "pay:42").stdout
        refused = semel("journal", "forget", "pay:42", "--yes")
        assert refused.exit_code == 1
        assert "intent 'pay:42' stays: it is being sent now" in refused.stderr
        api.may_answer.set()
        sender.communicate(timeout=20)
    assert json.loads(semel("journal", "show", "pay:42", "--json").stdout)["state"] == "answered"


def test_show_has_bodies_only_if_they_are_asked_for(semel: Any) -> None:
    with serving("json") as api:
        began(semel, f"{api.url}?token=t0ken", status=0)
        plain = semel("journal", "show", "pay:42").stdout
        assert f"POST {api.url}?token=t0ken" in plain
        assert "HTTP 201" in plain
        assert "content-type: application/json" in plain
        assert "nothing: calling it again gives this answer" in plain
        assert "s3cret" not in plain
        assert "paid" not in plain
        whole = semel("journal", "show", "pay:42", "--body").stdout
        assert "\ns3cret\n" in whole
        assert '\n{"paid": true}\n' in whole
        told = json.loads(semel("journal", "show", "pay:42", "--json").stdout)
        assert "body" not in told["request"]
        assert told["answer"]["body_size"] == 14
        told = json.loads(semel("journal", "show", "pay:42", "--json", "--body").stdout)
        assert (told["request"]["body"], told["answer"]["body"]) == ("s3cret", '{"paid": true}')
        assert (told["url"], told["answer"]["status"]) == (f"{api.url}?token=t0ken", 201)


def test_show_says_what_to_do(semel: Any) -> None:
    with serving("drop", "problem outcome-unknown") as api:
        began(semel, api.url)
        began(semel, api.url, "pay 43", status=5)
    assert "semel journal resume pay:42: its key stays the same" in semel("journal", "show", "pay:42").stdout
    assert "then semel journal forget 'pay 43' frees the name" in semel("journal", "show", "pay 43").stdout


def test_resume_sends_what_was_left_with_its_key_and_the_headers_that_are_not_kept(semel: Any, journal: str) -> None:
    with serving() as api:
        api.may_answer.clear()
        words = [sys.executable, "-m", "semel", "call", "POST", api.url, "--intent", "pay:42", "--journal", journal]
        killed = subprocess.Popen([*words, "-d", '{"amount": 5}', "--lease", "300ms"])
        until(lambda: api.requests)
        killed.kill()
        assert killed.wait(20) == -signal.SIGKILL
        api.may_answer.set()
        done = semel("journal", "resume", "pay:42", "-H", "Authorization: Bearer t0psecret")
        assert (done.exit_code, done.stdout) == (0, "paid")
        first, second = api.requests
        assert first == second
        assert api.credentials == ["", "Bearer t0psecret"]
        again = json.loads(semel("journal", "resume", "pay:42", "--json").stdout)
        assert (again["body"], again["from_journal"], len(api.requests)) == ("paid", True, 2)
    assert list(api.effects.values()) == [1]


def test_resume_finishes_everything_that_is_pending(semel: Any) -> None:
    with serving("drop", "drop", "drop") as api:
        for name in ("a", "b", "c"):
            began(semel, api.url, name)
        done = semel("journal", "resume", "--all-pending")
        assert (done.exit_code, done.stdout, done.stderr) == (0, "".join(f"{n}: 201, answered\n" for n in "abc"), "")
        assert semel("journal", "resume", "--all-pending").stdout == "No intent is pending.\n"
        assert sorted(api.effects.values()) == [1, 1, 1]


def test_resume_of_all_tells_each_and_ends_with_what_needs_a_person_most(semel: Any) -> None:
    with serving("drop", "problem outcome-unknown", "drop", "drop") as api:
        began(semel, api.url, "a")
        began(semel, api.url, "b", status=5)
        began(semel, api.url, "c", "--max-age", "1ms")
        began(semel, api.url, "d")
        api.behaviours += ["refuse 401", "refuse 400"]
        done = semel("journal", "resume", "--all-pending", "--json", *ONCE, "-H", "Authorization: Bearer t0psecret")
        told = json.loads(done.stdout)["resumed"]
        assert [(each["intent"], each["exit"]) for each in told] == [("a", 7), ("b", 5), ("c", 5), ("d", 4)]
        assert done.exit_code == 5
        assert len(done.stderr.splitlines()) == 4
        assert "t0psecret" not in done.output
        assert len(api.requests) == 6, "neither b nor c was sent"


def test_headers_of_one_service_never_go_to_another(semel: Any) -> None:
    with serving("drop") as one, serving("drop") as other:
        began(semel, one.url, "a")
        began(semel, other.url, "b")
        secret = ("-H", "Authorization: Bearer t0psecret")
        done = semel("journal", "resume", "--all-pending", *secret)
        assert done.exit_code == 2
        assert "choose one with --origin" in " ".join(done.stderr.split())
        done = semel("journal", "resume", "--all-pending", *secret, "--origin", one.url)
        assert (done.exit_code, done.stdout) == (0, "a: 201, answered\n")
        assert (len(one.requests), len(other.requests)) == (2, 1)
        prefix = other.url.rpartition("/")[0][:-1]
        assert semel("journal", "resume", "--all-pending", "--origin", prefix).stdout == "No intent is pending.\n"


def test_resume_sends_in_the_dialect_that_it_was_begun_in(semel: Any, journal: str) -> None:
    with serving("drop") as api:
        words = ("call", "POST", api.url, "--intent", "a", "--json-body", "{}", "--dialect", "square", *ONCE)
        assert semel(*words).exit_code == 75
        assert semel("journal", "resume", "a").exit_code == 0
        first, second = api.requests
        assert first == second
        assert b"idempotency_key" in first[2]


def test_resume_leaves_what_was_begun_in_a_dialect_of_its_program(semel: Any, journal: str) -> None:
    own = KeyDialect(name="our-own", source="-", header="X-Our-Key")
    transport = IdempotentTransport(httpx.HTTPTransport(), retry=Retry(attempts=1), dialect=own)
    with serving("drop") as api, closing(Journal(journal)) as opened, httpx.Client(transport=transport) as client:
        intent = opened.intent("b", max_age=timedelta(hours=1))
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(api.url, extensions={"semel": intent})
        done = semel("journal", "resume", "b")
        assert done.exit_code == 6
        assert "was begun in the dialect 'our-own', which only its program knows: run that again" in done.stderr
        assert len(api.requests) == 1


def test_resume_asks_the_service_again_how_it_wants_its_keys(semel: Any) -> None:
    with protecting(Policy(headers=("X-Request-Key",))) as shop:
        shop.may_answer.clear()
        words = ("call", "POST", f"{shop.url}/v1/charges", "--intent", "a", "-d", "slow", "--discover", *ONCE)
        assert semel(*words, "--timeout", "300ms").exit_code == 75
        shop.may_answer.set()
        assert json.loads(semel("journal", "resume", "a").stdout)["id"] == "ch_1"
        assert shop.effects == {b"slow": 1}
    done = semel("journal", "resume", "a")
    assert done.exit_code == 75
    assert "how to send the key is not known: ConnectError" in done.stderr


def test_forget_asks_and_says_what_it_means(semel: Any) -> None:
    with serving("drop", "answer") as api:
        began(semel, api.url)
        asked = semel("journal", "forget", "pay:42")
        assert asked.exit_code == 1
        assert "has no answer, and may have taken effect, so that the next call under this name is sent" in asked.stderr
        assert "There is no terminal to ask: add --yes to do it" in asked.stderr
        assert semel("journal", "forget", "pay:42", "--yes").stdout == "Forgot intent pay:42.\n"
        began(semel, api.url, status=0)
        assert len({key for _, key, _ in api.requests}) == 2, "the name has begun anew"
        assert "which has its answer, so that" in semel("journal", "forget", "pay:42").stderr
        told = json.loads(semel("journal", "forget", "pay:42", "--yes", "--json").stdout)
        assert told == {"action": "forget", "changed": 1}


def test_purge_leaves_what_is_pending_unless_it_is_asked_for(semel: Any) -> None:
    with serving("answer", "drop") as api:
        began(semel, api.url, "a", status=0)
        began(semel, api.url, "b")
        assert semel("journal", "purge", "--older-than", "1h").stdout == "Purged 0 intents.\n"
        assert semel("journal", "purge", "--older-than", "1h", "--pending").stdout == "Purged 0 intents.\n"
        assert semel("journal", "purge", "--older-than", "0s").stdout == "Purged 1 intent.\n"
        asked = semel("journal", "purge", "--older-than", "0s", "--pending")
        assert asked.exit_code == 1
        assert "Forget 1 intent that has no answer, and may have taken effect" in asked.stderr
        assert "b" in semel("journal", "list").stdout
        done = semel("journal", "purge", "--older-than", "0s", "--pending", "--yes", "--json")
        assert json.loads(done.stdout) == {"action": "purge", "changed": 1}
        assert semel("journal", "list").stdout == "No intent is pending.\n"


def test_a_sealed_journal_needs_its_keys_for_every_command(tmp_path: Path, semel: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"2026-11 {os.urandom(32).hex()}\n")
    with serving("drop") as api:
        began(semel, api.url, "pay:42", "--seal-keys", str(keys))
        for words in (("list",), ("show", "pay:42"), ("resume", "pay:42"), ("forget", "pay:42", "--yes")):
            done = semel("journal", *words)
            assert done.exit_code == 3
            assert "is sealed: open it with its keys" in done.stderr
        sealed = {"SEMEL_SEAL_KEYS": str(keys)}
        assert "pay:42" in semel("journal", "list", **sealed).stdout
        assert semel("journal", "resume", "pay:42", **sealed).stdout == "paid"
        assert "s3cret" in semel("journal", "show", "pay:42", "--body", **sealed).stdout


def test_the_keys_of_a_seal_are_never_shown(tmp_path: Path, semel: Any) -> None:
    keys = tmp_path / "keys"
    for text, told in (
        ("", "keys= is empty"),
        ("2026-11\n", "line 1: write a key id and 64 hexadecimal digits, with a blank between them"),
        ("# no\n2026-11 feedxyz\n", "line 2: write a key id and 64 hexadecimal digits"),
        ("2026-11 feedbeef\n", "must be 32 random bytes"),
        (f"a {'fe' * 32}\na {'ed' * 32}\n", "line 2: the key id 'a' stands there twice"),
    ):
        keys.write_text(text)
        done = semel("journal", "list", "--seal-keys", str(keys))
        assert done.exit_code == 2
        assert told in " ".join(done.stderr.split())
        assert "fe" * 3 not in done.output.replace("--seal-keys", "")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("show", "pay:1"), 1, "has no intent 'pay:1'; it may be forgotten or purged"),
        (("show", "pay:1", "--namespace", "shop"), 1, "has no intent 'pay:1' in the namespace 'shop'"),
        (("forget", "pay:1"), 1, "has no intent 'pay:1'"),
        (("resume", "pay:1"), 2, "has no intent 'pay:1': semel journal list shows what it has"),
        (("resume",), 2, "Give either a NAME or --all-pending"),
        (("resume", "a", "--all-pending"), 2, "Give either a NAME or --all-pending"),
        (("resume", "a", "--origin", "http://x"), 2, "add --all-pending"),
        (("resume", "--all-pending", "-o", "x"), 2, "--output is for the answer of one intent"),
        (("resume", "a", "-o", "/nowhere/x"), 2, "the folder /nowhere does not exist"),
        (("purge",), 2, "Missing option '--older-than'"),
        (("purge", "--older-than", "long"), 2, "'long' is not a duration"),
        (("list", "--state", "lost"), 2, "'lost' is not one of 'pending'"),
        (("list", "--nonsense"), 2, "No such option '--nonsense'"),
    ],
)
def test_what_is_wrong_is_named(semel: Any, journal: str, words: tuple[str, ...], status: int, told: str) -> None:
    Journal(journal).close()
    done = semel("journal", *words)
    assert done.exit_code == status
    assert told in " ".join(done.stderr.split())


def test_commands_that_look_do_not_make_a_journal(tmp_path: Path, semel: Any) -> None:
    for words in (("list",), ("show", "a"), ("resume", "a"), ("forget", "a"), ("purge", "--older-than", "1d")):
        done = semel("journal", *words)
        assert done.exit_code == 2
        assert "there is no such file; semel call makes it" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_config_hides_what_may_be_secret(semel: Any) -> None:
    done = semel("config", SEMEL_CALL_HEADERS="Authorization: t0psecret", SEMEL_CALL_DATA="t0psecret")
    assert done.exit_code == 0
    assert "t0psecret" not in done.output
    assert "SEMEL_JOURNAL " in done.output
