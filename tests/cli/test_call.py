"""`semel call`: one effect and one answer for each name, however the runs before it ended, and its exit statuses."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from datetime import timedelta
from inspect import cleandoc
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.calls import run
from client.api import Api, serving
from client.protected import protecting
from semel import Policy
from semel.cli.call import call
from semel.cli.exits import EXITS, CallExit
from semel.client import Journal
from semel.core.retries import AttemptEnd
from servers.certificates import write_certificate
from waiting import until

FAST = ("--deadline", "5s")
ONCE = ("--attempts", "1")
NAMED = ("--intent", "pay:42")


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/journal.db"


@pytest.fixture
def pay(journal: str) -> Any:
    """Runs `semel call POST` as pay:42."""

    def paid(api: Api, *words: str, name: str = "pay:42", **environment: str) -> Result:
        return run("call", "POST", api.url, "--intent", name, *words, SEMEL_JOURNAL=journal, **environment)

    return paid


def program(journal: str, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "semel", "call", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SEMEL_JOURNAL": journal},
    )


def test_the_second_run_prints_the_kept_answer_and_sends_nothing(pay: Any) -> None:
    with serving() as api:
        first = pay(api, "-d", '{"amount": 5}')
        assert (first.exit_code, first.stdout_bytes, first.stderr) == (0, b"paid", "")
        second = pay(api, "-d", '{"amount": 5}')
    assert (second.exit_code, second.stdout_bytes, second.stderr) == (0, b"paid", "")
    assert len(api.requests) == 1
    assert api.requests[0][2] == b'{"amount": 5}'


def test_a_run_that_was_killed_is_simply_run_again(journal: str) -> None:
    with serving() as api:
        words = ("POST", api.url, *NAMED, "-d", "x", "--lease", "300ms", *FAST)
        api.may_answer.clear()
        killed = program(journal, *words)
        until(lambda: api.requests)
        killed.kill()
        assert killed.wait(20) == -signal.SIGKILL
        api.may_answer.set()
        again = program(journal, *words)
        out, err = again.communicate(timeout=30)
        assert (again.returncode, out, err) == (0, b"paid", b"")
        first, second = api.requests
        assert first == second
    assert list(api.effects.values()) == [1]


def test_two_processes_race_on_one_name(journal: str) -> None:
    with serving() as api:
        api.may_answer.clear()
        racers = [program(journal, "POST", api.url, *NAMED, "-d", "x", *FAST) for _ in range(2)]
        until(lambda: api.requests)
        api.may_answer.set()
        ends = [(racer.communicate(timeout=30)[0], racer.returncode) for racer in racers]
    assert ends == [(b"paid", 0)] * 2
    assert len(api.requests) == 1
    assert list(api.effects.values()) == [1]


def test_ctrl_c_is_no_refusal_and_the_next_run_need_not_wait_for_the_lease(journal: str) -> None:
    with serving() as api:
        words = ("POST", api.url, *NAMED, "--lease", "1h", *FAST)
        api.may_answer.clear()
        stopped = program(journal, *words)
        until(lambda: api.requests)
        stopped.send_signal(signal.SIGINT)
        out, err = stopped.communicate(timeout=20)
        assert (stopped.returncode, out) == (130, b"")
        assert b"Interrupted. The request may have been sent: run the same command again" in err
        api.may_answer.set()
        again = program(journal, *words)
        assert (again.communicate(timeout=30)[0], again.returncode) == (b"paid", 0)
    assert list(api.effects.values()) == [1]


ENDINGS = [
    ("answer", 0, "", "answered"),
    ("json", 0, "", "answered"),
    ("redirect 303 /done", 0, "", "answered"),
    ("refuse 400", 4, "was refused, and this is the final answer: 400", "answered"),
    ("refuse 404", 4, "was refused, and this is the final answer: 404", "answered"),
    ("problem internal-error", 4, "was refused, and this is the final answer: 409", "answered"),
    ("problem outcome-unknown", 5, "Find out at the service whether it took effect; semel journal forget", "doubtful"),
    ("problem key-expired", 5, "remembers the key, and no longer its answer", "doubtful"),
    ("problem record-unreadable", 5, "cannot read its record of the key", "doubtful"),
    ("refuse 422", 5, "the key is missing, malformed or belongs to another request", "doubtful"),
    ("problem result-not-kept", 5, "Find out at the service how it ended", "answered"),
    ("refuse 401", 7, "To go on, run it again with other credentials in -H", "open"),
    ("redirect 307 /elsewhere", 7, "send it to the new address, under a new name", "open"),
    ("problem in-progress", 75, "Run the same command again: it goes on with the same key", "open"),
    ("refuse 429", 75, "too many requests", "open"),
    ("refuse 500", 75, "nothing says that it is stored", "open"),
    ("502", 75, "502, a proxy got no answer: the operation may have run: bad gateway", "open"),
    ("drop", 75, "the connection failed: the request may have arrived (RemoteProtocolError", "open"),
]


@pytest.mark.parametrize(("behaviour", "status", "told", "state"), ENDINGS, ids=[each[0] for each in ENDINGS])
def test_the_exit_status_says_how_it_ended(
    journal: str, pay: Any, behaviour: str, status: int, told: str, state: str
) -> None:
    with serving(behaviour) as api:
        done = pay(api, *ONCE)
        assert done.exit_code == status, done.output
        assert told in done.stderr
        assert (done.stderr == "") is (status == 0)
        entry = Journal(journal).read("pay:42")
        assert entry is not None
        assert entry.state.value == state
        again = pay(api, *ONCE)
    if state == "open":
        assert (again.exit_code, len(api.requests)) == (0, 2), "it is safe to run again, under the same key"
        assert len({key for _, key, _ in api.requests}) == 1
    else:
        assert (again.exit_code, again.stdout_bytes) == (status, done.stdout_bytes)
        assert len(api.requests) == 1, "nothing more is sent"


def test_only_a_final_answer_goes_to_stdout(pay: Any) -> None:
    with serving("502", "refuse 401", "problem outcome-unknown") as api:
        for _ in range(3):
            assert pay(api, *ONCE).stdout_bytes == b""


def test_every_end_has_an_exit_status_and_every_status_is_documented() -> None:
    assert EXITS.keys() == set(AttemptEnd)
    section = (Path(__file__).parents[2] / "docs" / "cli.md").read_text().split("\n## A request that a script sends")[1]
    for status in {*CallExit, 1, 2, 3}:
        assert f"\n| {int(status)} | " in section.split("\n## ")[0]
        assert f"\n  {int(status)} " in cleandoc(call.help or "")


def test_a_service_that_cannot_be_reached(pay: Any, journal: str) -> None:
    with serving() as api:
        pass
    done = pay(api, "--attempts", "2", *FAST)
    assert done.exit_code == 75
    assert "no connection: the request cannot have arrived (ConnectError" in done.stderr
    entry = Journal(journal).read("pay:42")
    assert entry is not None
    assert entry.attempts == 2


def test_a_certificate_that_is_not_trusted_needs_a_change(pay: Any, tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path)
    with serving(certificate=certificate) as api:
        done = pay(api, *FAST)
        assert (done.exit_code, api.requests) == (7, [])
        assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
        assert "mend what the message names" in done.stderr
        trusting = pay(api, *FAST, SSL_CERT_FILE=str(certificate[0]))
    assert (trusting.exit_code, trusting.stdout) == (0, "paid")


def test_one_that_is_older_than_max_age_is_not_sent_again(pay: Any) -> None:
    with serving("drop") as api:
        assert pay(api, *ONCE).exit_code == 75
        done = pay(api, "--max-age", "1ms")
        assert (done.exit_code, len(api.requests)) == (5, 1)
    assert "the server may have forgotten its key" in done.stderr
    assert "On the command line that is: semel journal forget pay:42" in done.stderr


def test_another_request_under_the_name_is_refused(pay: Any) -> None:
    with serving() as api:
        assert pay(api, "-d", "5").exit_code == 0
        for words in (("-d", "6"), ("-d", "5", "-H", "Content-Type: text/plain"), ("-d", "5", "--dialect", "stripe")):
            done = pay(api, *words)
            assert (done.exit_code, done.stdout) == (6, "")
            assert "intent 'pay:42': the name of the intent belongs to another request; nothing was sent" in done.stderr
        done = pay(api, "-d", "5", "-H", "Idempotency-Key: mine")
        assert done.exit_code == 6
        assert "the intent has another key than the request" in done.stderr
        assert len(api.requests) == 1


def test_a_wrong_url_that_was_mended_says_how_to_free_the_name(journal: str, pay: Any) -> None:
    with serving() as api:
        wrong = run("call", "POST", "http://127.0.0.1:1/", *NAMED, *ONCE, SEMEL_JOURNAL=journal)
        assert wrong.exit_code == 75
        done = pay(api)
        assert done.exit_code == 6
        assert "the request cannot have arrived" in done.stderr
        assert done.stderr.endswith("On the command line that is: semel journal forget pay:42\n")


def test_a_name_that_another_run_holds(journal: str, pay: Any) -> None:
    with serving() as api:
        api.may_answer.clear()
        other = program(journal, "POST", api.url, *NAMED, *FAST)
        until(lambda: api.requests)
        done = pay(api, "--deadline", "50ms")
        api.may_answer.set()
        other.communicate(timeout=20)
    assert done.exit_code == 75
    assert "another sender holds the intent" in done.stderr
    assert "Run the same command again: it goes on with the same key" in done.stderr
    assert (other.returncode, len(api.requests)) == (0, 1)


def test_json_says_everything_about_a_call(journal: str, pay: Any) -> None:
    with serving("json") as api:
        first, second = (json.loads(pay(api, "--json", "-d", "5").stdout) for _ in range(2))
    entry = Journal(journal).read("pay:42")
    assert entry is not None
    headers = first.pop("headers")
    assert ["content-type", "application/json"] in headers
    assert first == {
        "intent": "pay:42",
        "key": entry.key,
        "state": "answered",
        "exit": 0,
        "status": 201,
        "body": '{"paid": true}',
        "body_base64": None,
        "body_size": 14,
        "attempts": 1,
        "replayed": False,
        "from_journal": False,
        "end": "answered",
        "error": None,
        "warning": None,
        "journal": journal,
    }
    assert second.pop("headers") == headers
    assert second == first | {"attempts": 0, "replayed": True, "from_journal": True}


def test_json_says_why_there_is_no_answer(pay: Any) -> None:
    with serving("refuse 503", "drop") as api:
        refused, lost = pay(api, *ONCE, "--json"), pay(api, *ONCE, "--json")
        drifted = pay(api, "--json", "-d", "5")
    told = json.loads(refused.stdout)
    assert refused.exit_code == told["exit"] == 75
    assert (told["status"], told["state"], told["end"], told["from_journal"]) == (503, "open", "later", False)
    assert f"Error: {told['error']}\n" == refused.stderr
    told = json.loads(lost.stdout)
    assert (told["status"], told["headers"], told["body"], told["end"], told["attempts"]) == (
        None,
        None,
        None,
        "lost",
        1,
    )
    told = json.loads(drifted.stdout)
    assert (told["exit"], told["state"], told["key"], told["end"]) == (6, None, None, None)


def test_bytes_that_are_no_text_arrive_as_they_are(tmp_path: Path, pay: Any) -> None:
    sent = bytes(range(256))
    (tmp_path / "body").write_bytes(sent)
    with serving() as api:
        assert pay(api, "-d", f"@{tmp_path}/body").exit_code == 0
        assert api.requests[0][2] == sent


def test_a_body_from_stdin(journal: str) -> None:
    with serving() as api:
        sending = subprocess.run(
            [sys.executable, "-m", "semel", "call", "POST", api.url, *NAMED, "--journal", journal, "-d", "@-"],
            input=b"from \xff stdin",
            capture_output=True,
            timeout=30,
        )
        assert (sending.returncode, sending.stdout) == (0, b"paid")
        assert api.requests[0][2] == b"from \xff stdin"


def test_the_answer_goes_to_a_file(tmp_path: Path, pay: Any) -> None:
    with serving("json", "502") as api:
        file = tmp_path / "receipt.json"
        done = pay(api, "-o", str(file), "--include")
        assert (done.exit_code, done.stdout) == (0, "")
        head, _, body = file.read_bytes().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 Created\r\n")
        assert b"\r\ncontent-type: application/json" in head
        assert body == b'{"paid": true}'
        assert pay(api, "-o", str(file), *ONCE, name="pay:43").exit_code == 75
        assert file.read_bytes().endswith(body), "what is no final answer does not replace one"


def test_an_answer_that_cannot_be_written_is_got_by_the_next_run(pay: Any, journal: str) -> None:
    with serving() as api:
        done = pay(api, "-o", "/dev/full")
        assert done.exit_code == 75
        assert "could not be written to /dev/full: No space left on device. Run the same command again" in done.stderr
        reader, writer = os.pipe()
        os.close(reader)
        closed = subprocess.run(
            [sys.executable, "-m", "semel", "call", "POST", api.url, *NAMED, "--journal", journal],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=30,
        )
        os.close(writer)
        assert closed.returncode == 75
        assert b"could not be written to stdout: Broken pipe" in closed.stderr
        assert pay(api).stdout == "paid"
        assert len(api.requests) == 1


def test_an_answer_that_is_too_large_for_the_journal(pay: Any) -> None:
    with serving("long") as api:
        assert pay(api).stdout_bytes == b"long" * 500_000
        second = pay(api)
        assert (second.exit_code, second.stdout) == (0, "")
        assert "Warning: the operation was carried out; its answer of 2000000 bytes was too large" in second.stderr
        told = json.loads(pay(api, "--json").stdout)
        assert (told["status"], told["body"], told["body_size"], told["from_journal"]) == (201, None, 2_000_000, True)
        assert len(api.requests) == 1


def test_secrets_are_neither_printed_nor_kept(tmp_path: Path, pay: Any) -> None:
    (tmp_path / "headers").write_text("Authorization: Bearer t0psecret\n\nX-Api-Key: k3ysecret\n")
    with serving("refuse 401", "drop", "answer") as api:
        for status in (7, 75, 0):
            done = pay(api, *ONCE, "-H", f"@{tmp_path}/headers", "-H", "Cookie: c00kie")
            assert done.exit_code == status
            assert not {word for word in ("t0psecret", "k3ysecret", "c00kie") if word in done.output}
    written = b"".join(file.read_bytes() for file in tmp_path.glob("journal.db*"))
    assert b"pay:42" in written
    assert not {word for word in (b"t0psecret", b"k3ysecret", b"c00kie") if word in written}


def test_without_an_intent_only_what_may_be_repeated_is_sent(tmp_path: Path) -> None:
    with serving("502", "answer", "502") as api:
        done = run("call", "GET", api.url, SEMEL_JOURNAL=f"sqlite:///{tmp_path}/none.db")
        assert (done.exit_code, done.stdout) == (0, "paid")
        done = run("call", "PUT", api.url, "-d", "x", "--json", *ONCE)
        told = json.loads(done.stdout)
        assert (done.exit_code, told["intent"], told["state"], told["journal"]) == (75, None, None, None)
        assert len(api.requests) == 3
    assert not list(tmp_path.iterdir())


def test_the_journal_is_in_the_state_directory_unless_it_is_named(tmp_path: Path) -> None:
    with serving() as api:
        done = run("call", "POST", api.url, *NAMED, XDG_STATE_HOME=str(tmp_path / "state"))
        place = tmp_path / "state" / "semel" / "journal.db"
        assert (done.exit_code, done.stdout) == (0, "paid")
        assert done.stderr == f"The journal is {place} (--journal or SEMEL_JOURNAL names another).\n"
        assert place.exists()
        assert place.parent.stat().st_mode & 0o77 == 0
        done = run("call", "POST", api.url, *NAMED, XDG_STATE_HOME="relative", HOME=str(tmp_path))
        assert (tmp_path / ".local" / "state" / "semel" / "journal.db").exists()


def test_a_sealed_journal_needs_its_keys(tmp_path: Path, pay: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# made in November\n2026-11 {os.urandom(32).hex()}\n")
    with serving() as api:
        for _ in range(2):
            done = pay(api, "-d", "s3cret", SEMEL_SEAL_KEYS=str(keys))
            assert (done.exit_code, done.stdout) == (0, "paid")
        assert b"s3cret" not in b"".join(file.read_bytes() for file in tmp_path.glob("journal.db*"))
        done = pay(api, "-d", "s3cret")
        assert done.exit_code == 3
        assert "is sealed: open it with its keys, Journal(url, seal=Seal(keys)) or --seal-keys" in done.stderr
        keys.write_text(f"2026-11 {os.urandom(32).hex()}\n")
        done = pay(api, "-d", "s3cret", "--seal-keys", str(keys))
        assert done.exit_code == 3
        assert "does not open with the keys" in done.stderr
        assert len(api.requests) == 1


def test_namespaces_keep_applications_apart(pay: Any) -> None:
    with serving() as api:
        assert pay(api).exit_code == pay(api, "--namespace", "shop").exit_code == 0
        assert pay(api, SEMEL_JOURNAL_NAMESPACE="shop").exit_code == 0
    assert len(api.effects) == 2


def test_the_dialect_says_where_the_key_stands(pay: Any) -> None:
    with serving() as api:
        assert pay(api, "--json-body", '{"amount": 5}', "--dialect", "square").exit_code == 0
        _, header, body = api.requests[0]
    assert (header, len(json.loads(body)["idempotency_key"])) == ("", 36)


def test_a_service_is_asked_how_it_wants_its_keys(journal: str) -> None:
    policy = Policy(headers=("X-Request-Key",), retention=timedelta(hours=2))
    with protecting(policy) as shop:
        words = ("call", "POST", f"{shop.url}/v1/charges", *NAMED, "-d", '{"amount": 5}', "--journal", journal)
        for _ in range(2):
            done = run(*words, "--discover")
            assert (done.exit_code, json.loads(done.stdout)["id"]) == (0, "ch_1")
        entry = Journal(journal).read("pay:42")
        assert entry is not None
        assert (entry.request.dialect, entry.max_age_ms) == ("discovered", 6_900_000)
        done = run(*words, "--discover", "--max-age", "3h")
        assert done.exit_code == 2
        assert "3h is too long: by what it publishes the service remembers a key for 2h" in done.stderr
    assert list(shop.effects.values()) == [1]


def test_a_service_that_says_nothing_about_its_keys(pay: Any) -> None:
    with serving("refuse 404") as api:
        done = pay(api, "--discover")
        assert (done.exit_code, [path for path, _, _ in api.requests]) == (2, ["/.well-known/idempotency"])
        assert "answers 404" in " ".join(done.stderr.split())
        assert "--dialect says it instead" in " ".join(done.stderr.split())
    done = pay(api, "--discover")
    assert done.exit_code == 75
    assert "--discover: ConnectError" in done.stderr
    assert "Nothing was sent: run the same command again" in done.stderr


WRONG = [
    (("--nonsense",), "No such option '--nonsense'"),
    (("--intent", "n" * 256), "name has 256 bytes in UTF-8, the limit is 255"),
    (("--intent", ""), "name must not be empty"),
    (("--max-age", "soon"), "'soon' is not a duration: write 90s, 5m, 24h, 7d or a number of seconds"),
    (("--max-age", "0s"), "'0s' is not between 1ms and 3650d"),
    (("--max-age", "25h"), "1d 1h is too long: by the dialect draft-07 the service remembers a key for 1d"),
    (("--deadline", "25h"), "'25h' is not between 1ms and 24h"),
    (("--attempts", "0"), "0 is not in the range 1<=x<=1000"),
    (("-d", "@/nowhere/body"), "/nowhere/body: No such file or directory"),
    (("-d", "a", "--json-body", "{}"), "Give only one of --data and --json-body"),
    (("--json-body", "{"), "it is not JSON; --data sends anything"),
    (("-d", "x" * 1_048_577), "body has 1048577 bytes, and a journal keeps at most 1048576"),
    (("-d", "text", "--dialect", "square"), "sends the key in the field idempotency_key of a JSON object"),
    (("--json-body", '{"idempotency_key": 5}', "--dialect", "square"), "idempotency_key must be text, not int"),
    (("-H", "Authorization t0psecret"), "a header is written 'Name: value', in printable ASCII characters"),
    (("-H", "X Y: t0psecret"), "a header is written 'Name: value', in printable ASCII characters"),
    (("-H", "Content-Length: 5"), "semel sets the header Content-Length itself: leave it out"),
    (("-H", "@/nowhere/headers"), "/nowhere/headers: No such file or directory"),
    (("-H", f"Idempotency-Key: {'k' * 256}"), "key has 256 bytes in UTF-8, the limit is 255"),
    (("--dialect", "unheard-of"), "'unheard-of' is not one of 'draft-07'"),
    (("--dialect", "stripe", "--discover"), "Give only one of --dialect and --discover"),
    (("--json", "--include"), "--json has the headers already: leave --include out"),
    (("-o", "/nowhere/receipt"), "the folder /nowhere does not exist"),
    (("--namespace", "n" * 256), "the limit is 255"),
    (("--journal", "memory://"), "memory:// would end with this command, and protect nothing"),
    (("--journal", "postgresql://u:t0psecret@localhost/x"), "there is no journal at postgresql://"),
    (("--journal", "redis://localhost"), "Write sqlite:///journal.db, or memory://"),
    (("--journal", "sqlite://journal.db"), "a journal URL has no host and no options"),
    (("--journal", "journal.db"), "'journal.db' is not a journal URL"),
    (("--seal-keys", "/nowhere/keys"), "/nowhere/keys: No such file or directory"),
]


@pytest.mark.parametrize(("words", "told"), WRONG, ids=[" ".join(words)[:40] for words, _ in WRONG])
def test_what_is_wrong_is_named_and_nothing_is_sent(
    tmp_path: Path, pay: Any, words: tuple[str, ...], told: str
) -> None:
    with serving() as api:
        done = pay(api, *words)
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.stderr.split())
    assert "t0psecret" not in done.output
    assert api.requests == []
    assert not list(tmp_path.glob("journal*")), "not even a journal is made"


@pytest.mark.parametrize(
    ("method", "url", "told"),
    [
        ("GET", "http://127.0.0.1:1/", "GET changes nothing, so no journal keeps it: leave --intent out"),
        ("P/ST", "http://127.0.0.1:1/", "'P/ST' is no method: write POST, PATCH, PUT, DELETE or GET"),
        ("POST", "127.0.0.1:1/pay", "write an http:// or https:// URL"),
        ("POST", "ftp://127.0.0.1/pay", "write an http:// or https:// URL"),
        ("POST", "http://127.0.0.1:99999/", "Port out of range"),
        ("POST", "http://bob:t0psecret@127.0.0.1:1/", "a URL with credentials would be kept in the journal"),
        ("POST", "http://127.0.0.1:1/#part", "what stands after # is not sent"),
    ],
)
def test_a_target_that_is_wrong(journal: str, method: str, url: str, told: str) -> None:
    done = run("call", method, url, *NAMED, "--journal", journal)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert "t0psecret" not in done.output


@pytest.mark.parametrize("method", ["POST", "PATCH", "post", "MERGE"])
def test_what_is_not_idempotent_needs_a_name(method: str) -> None:
    with serving() as api:
        done = run("call", method, api.url)
        assert (done.exit_code, api.requests) == (2, [])
    told = " ".join(done.stderr.split())
    assert f"{method.upper()} needs --intent NAME: only a name tells the next run that it is the same operation" in told


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("PRAGMA user_version = 99", "was written by a newer version of semel (schema 99, this one reads up to 1)"),
        ("PRAGMA application_id = 7", "is the database of another program: give the journal a file of its own"),
    ],
)
def test_a_journal_that_cannot_be_used(tmp_path: Path, journal: str, pay: Any, statement: str, told: str) -> None:
    Journal(journal).close()
    connection = sqlite3.connect(tmp_path / "journal.db")
    connection.execute(statement)
    connection.close()
    with serving() as api:
        done = pay(api)
        assert (done.exit_code, api.requests) == (3, [])
    assert told in done.stderr


def test_without_httpx_it_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['httpx'] = None\n"
            "sys.argv = ['semel', 'call', 'GET', 'http://127.0.0.1:1/']\n"
            "from semel.__main__ import main\nmain()",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == 'Error: sending a request needs httpx, which is not installed: pip install "semel[cli]"\n'
