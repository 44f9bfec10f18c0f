"""`stuck`, `stats`, `tail`, `purge` and `config`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

from cli.calls import ANSWER, HOUR_MS, SCOPE, claimed, finished, run, run_json, unknown
from semel import Key, open_store
from semel.store import Store
from waiting import until

KEY = Key("shop", SCOPE, "order-1")


def expired(store: Store, number: int) -> None:
    """So many records past retention, and one that is not."""
    finished(store, KEY)
    for each in range(number):
        lease = claimed(store, Key("shop", SCOPE, f"old-{each}"))
        assert store.complete(lease, ANSWER, retention_ms=1)
    time.sleep(0.02)


def test_stuck_finds_unknown_outcomes_and_old_leases(url: str, store: Store) -> None:
    assert run("stuck", store=url).exit_code == 0
    finished(store, KEY)
    claimed(store, Key("shop", SCOPE, "held"))
    assert run_json("stuck", store=url) == {"records": [], "more": False, "unreadable": []}
    held = run_json("stuck", "--older-than", "0s", "--names", store=url, status=1)
    assert [record["name"] for record in held["records"]] == ["held"]
    unknown(store, Key("shop", SCOPE, "lost"))
    found = run("stuck", "--names", store=url)
    assert found.exit_code == 1
    assert "lost" in found.output
    assert "held" not in found.output
    assert run("stuck", "--tenant", "other", store=url).exit_code == 0


def test_stats_count(url: str, store: Store) -> None:
    for number in range(3):
        finished(store, Key("shop", SCOPE, f"{number}"))
    finished(store, Key("other", "GET /", "x"))
    claimed(store, Key("other", SCOPE, "y"))
    found = run_json("stats", store=url)
    assert found["counts"] == {
        "in_progress": 1,
        "unknown": 0,
        "succeeded": 4,
        "failed": 0,
        "exact": True,
        "unreadable": 0,
    }
    assert found["tenants"] == [{"value": "shop", "records": 3}, {"value": "other", "records": 2}]
    assert found["scopes"] == [{"value": SCOPE, "records": 4}, {"value": "GET /", "records": 1}]
    assert (found["scanned"], found["scanned_all"]) == (5, True)
    bounded = run_json("stats", "--scan-max", "2", "--top", "1", store=url)
    assert (bounded["scanned"], bounded["scanned_all"], len(bounded["tenants"])) == (2, False, 1)
    assert "succeeded    4" in run("stats", store=url).output


def test_purge_deletes_what_nobody_is_owed(url: str, store: Store) -> None:
    expired(store, 7)
    assert "Purged 3 records" in run("purge", "--limit", "3", "--batch", "2", store=url).output
    assert "Purged 4 records" in run("purge", "--batch", "1", "--rate", "100000", store=url).output
    assert "Purged 0 records" in run("purge", store=url).output
    assert store.get(KEY) is not None


def test_purge_keeps_to_its_rate(file_url: str, file_store: Store) -> None:
    expired(file_store, 4)
    started_s = time.monotonic()
    assert run("purge", "--batch", "1", "--rate", "40", store=file_url).exit_code == 0
    assert time.monotonic() - started_s >= 4 / 40 - 0.001


@contextmanager
def tailing(url: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "semel", "tail", "--store", url, "--every", "20ms", "--from-start", *words]
    # A job in the background of a shell ignores Ctrl-C, and would hand that down.
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, preexec_fn=heed, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def test_tail_follows_records_and_ends_well(file_url: str, file_store: Store) -> None:
    finished(file_store, KEY)
    with tailing(file_url, "--json", "--names") as process:
        assert process.stdout is not None
        assert process.stderr is not None

        def event() -> tuple[str, str]:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            return told["event"], told["name"]

        assert event() == ("succeeded", "order-1")
        lease = claimed(file_store, Key("shop", SCOPE, "order-2"))
        assert event() == ("in_progress", "order-2")
        assert file_store.release(lease)
        assert event() == ("gone", "order-2")
        unknown(file_store, Key("shop", SCOPE, "order-3"))
        seen = [event()]
        while seen[-1][0] != "unknown":
            seen.append(event())
        assert {name for _, name in seen} == {"order-3"}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_tail_stops_after_so_many_lines(file_url: str, file_store: Store) -> None:
    for number in range(3):
        finished(file_store, Key("shop", SCOPE, f"order-{number}"))
    done = run("tail", "--from-start", "--events", "2", store=file_url)
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == 2
    assert "order-" not in done.output


def test_tail_does_not_look_all_the_time(file_url: str, file_store: Store) -> None:
    finished(file_store, KEY)
    done = run("tail", "--every", "0s", store=file_url)
    assert done.exit_code == 2
    assert "10ms" in done.stderr


def test_tail_on_every_store(url: str, store: Store) -> None:
    finished(store, KEY)
    done = run("tail", "--from-start", "--events", "1", "--names", "--tenant", "shop", store=url)
    assert "order-1" in done.output


def test_config_says_where_values_come_from(file_url: str) -> None:
    done = run("config", "--json", store=f"{file_url}?synchronous=full")
    assert done.exit_code == 0, done.output
    found = {each["name"]: each for each in json.loads(done.stdout)["settings"]}
    assert found["store"]["source"] == "SEMEL_STORE"
    assert (found["store.synchronous"]["value"], found["store.synchronous"]["source"]) == ("full", "SEMEL_STORE")
    assert (found["store.busy_timeout_ms"]["value"], found["store.busy_timeout_ms"]["source"]) == ("5000", "default")
    assert found["policy.guarantee"]["source"] == "default"


def test_config_hides_passwords() -> None:
    done = run("config", store="postgresql://me:sesame@localhost/shop?sslmode=require")
    assert done.exit_code == 0
    assert "store.sslmode" in done.output
    assert "sesame" not in done.output


def test_config_hides_passwords_of_urls_in_a_url() -> None:
    tiers = [quote(f"{scheme}://me:sesame@place/0", safe="") for scheme in ("redis", "postgresql")]
    done = run("config", store=f"tiered:?front={tiers[0]}&back={tiers[1]}", SEMEL_GUIDE_URL=f"tiered:?front={tiers[0]}")
    assert done.exit_code == 0, done.output
    assert "redis://me:***@place/0" in done.output
    assert "postgresql://me:***@place/0" in done.output
    assert "sesame" not in done.output


def test_config_hides_secrets_of_the_environment() -> None:
    done = run(
        "config",
        SEMEL_GATEWAY_SECRET="sesame",
        SEMEL_TRY_IDENTITY="Authorization: sesame",
        SEMEL_TRY_HEADERS="Cookie:sesame",
        SEMEL_GUIDE_URL="http://me:sesame@[",
    )
    assert done.exit_code == 0, done.output
    assert "SEMEL_GATEWAY_SECRET" in done.output
    assert "sesame" not in done.output


def test_config_finds_variables_that_nothing_reads() -> None:
    done = run("config", SEMEL_KEYS_LIST_LIMT="5", SEMEL_KEYS_LIST_LIMIT="5")
    assert done.exit_code == 1
    assert "SEMEL_KEYS_LIST_LIMT is set, and nothing reads it: did you mean SEMEL_KEYS_LIST_LIMIT?" in done.output
    assert "environment, for semel keys list --limit" in done.output


def test_every_option_is_a_variable(file_url: str, file_store: Store) -> None:
    for number in range(3):
        finished(file_store, Key("shop", SCOPE, f"order-{number}"))
    done = run("keys", "list", store=file_url, SEMEL_KEYS_LIST_LIMIT="2", SEMEL_KEYS_LIST_JSON="1")
    assert len(json.loads(done.stdout)["records"]) == 2


def test_lapsed_records_of_a_killed_process_are_found(file_url: str) -> None:
    """The real thing: a process claims a key and is killed."""
    code = (
        "import os, sys, signal, semel\n"
        "store = semel.open_store(sys.argv[1])\n"
        "store.claim(semel.Key('shop', 'POST /payments', 'killed'), 'v1:x', owner='o', lease_ms=1,"
        " retention_ms=3600000, takeover=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, file_url], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    until(lambda: run("stuck", store=file_url).exit_code == 1)
    assert run("keys", "release", "killed", "--yes", store=file_url).exit_code == 0
    with closing(open_store(file_url)) as store:
        assert store.get(Key("shop", SCOPE, "killed")) is None
        claimed(store, Key("shop", SCOPE, "killed"), lease_ms=HOUR_MS)
