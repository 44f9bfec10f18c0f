"""What lists print can be given back: a digest, or the beginning of one, in place of a key's name."""

import re
from pathlib import Path

import pytest

from cli.calls import SCOPE, finished, run, run_json, unknown
from semel import Key
from semel.store import Store

COMMANDS = {
    "show": (),
    "resolve": ("--nothing-done", "--yes"),
    "release": ("--yes",),
    "delete": ("--yes",),
}


def test_every_command_takes_what_lists_print(url: str, store: Store) -> None:
    for number, (command, words) in enumerate(COMMANDS.items()):
        unknown(store, Key("shop", SCOPE, f"order-{number}"))
        printed = run("stuck", store=url).stdout.splitlines()[1].split()[0]
        assert re.fullmatch(r"[0-9a-f]{16}", printed)
        assert printed == run_json("keys", "list", store=url)["records"][0]["digest"]
        assert run("keys", command, printed, *words, store=url).exit_code == 0, command
        left = run_json("keys", "list", store=url)["records"]
        assert len(left) == (1 if command == "show" else 0), command
        if left:
            store.remove(unknown_record(store))  # type: ignore[attr-defined]
    finished(store, Key("shop", SCOPE, "done"))
    printed = run("keys", "list", store=url).stdout.splitlines()[1].split()[0]
    assert run("keys", "expire", printed, "--yes", store=url).exit_code == 0
    assert run_json("keys", "list", store=url)["records"] == []


def unknown_record(store: Store) -> object:
    [record] = store.scan().records  # type: ignore[attr-defined]
    return record


def test_the_beginning_of_a_digest_is_enough_if_no_other_has_it(url: str, store: Store) -> None:
    by_beginning: dict[str, str] = {}
    number = 0
    while len(by_beginning) == number:  # until two digests begin alike
        digest = Key("", "", f"order-{number}").name_digest
        by_beginning.setdefault(digest[:4], f"order-{number}")
        number += 1
    last = f"order-{number - 1}"
    alike = Key("", "", last).name_digest[:4]
    for name in (last, by_beginning[alike], "alone"):
        finished(store, Key("shop", SCOPE, name))
    alone = Key("", "", "alone").name_digest
    for words in ((alone[:4],), (alone[:9],), (alone,), (alone[:5], "--digest"), (alone, "--tenant", "shop")):
        assert run_json("keys", "show", *words, "--names", store=url)["name"] == "alone", words
    for more in ((), ("--digest",), ("--tenant", "shop", "--scope", SCOPE)):
        ambiguous = run("keys", "show", alike, *more, store=url)
        assert ambiguous.exit_code == 2
        assert "2 records have a digest that begins with" in ambiguous.stderr
        assert Key("", "", last).name_digest in ambiguous.stderr
        assert last not in ambiguous.stderr, "errors show no names"
    deleted = run("keys", "delete", alike, "--yes", store=url)
    assert deleted.exit_code == 2
    assert len(run_json("keys", "list", store=url)["records"]) == 3


def test_a_digest_that_no_record_has(url: str, store: Store) -> None:
    finished(store, Key("shop", SCOPE, "order-1"))
    for words in (("0123456789abcdef",), ("0123456789abcdef", "--digest"), ("0123",)):
        done = run("keys", "show", *words, store=url)
        assert (done.exit_code, "has no such record" in done.stderr) == (1, True)
    for text in ("012", "order-1", "0123456789abcdef0", "XYZW"):
        done = run("keys", "show", text, "--digest", store=url)
        assert (done.exit_code, "is not a digest" in done.stderr) == (2, True), text


def test_the_same_name_of_two_tenants(url: str, store: Store) -> None:
    finished(store, Key("shop", SCOPE, "order-1"))
    finished(store, Key("other", SCOPE, "order-1"))
    digest = Key("", "", "order-1").name_digest
    ambiguous = run("keys", "show", digest, store=url)
    assert ambiguous.exit_code == 2
    assert f"{digest} --tenant 'other' --scope 'POST /payments'" in ambiguous.stderr
    assert run_json("keys", "show", digest, "--tenant", "shop", store=url)["tenant"] == "shop"
    assert run_json("keys", "show", digest, "--tenant", "shop", "--scope", SCOPE, store=url)["tenant"] == "shop"


@pytest.mark.parametrize("size", [4, 16])
def test_a_name_that_looks_like_a_digest_of_another(url: str, store: Store, size: int) -> None:
    """A caller may choose its names, so a name never goes before another's digest."""
    real = Key("shop", SCOPE, "order-1")
    false = Key("mallory", SCOPE, real.name_digest[:size])
    finished(store, real)
    finished(store, false)
    refused = run("keys", "delete", false.name, "--yes", store=url)
    assert refused.exit_code == 2
    assert "is the name of a record and the digest of another" in refused.stderr
    assert run_json("keys", "show", false.name, "--digest", store=url)["tenant"] == "shop"
    words = ("--tenant", "mallory", "--scope", SCOPE)
    assert run_json("keys", "show", false.name, *words, store=url)["tenant"] == "mallory"


def test_logs_print_it_too(file_url: str, file_store: Store, tmp_path: Path) -> None:
    key = Key("shop", SCOPE, "order-1")
    finished(file_store, key)
    assert str(key).startswith(key.name_digest)
    assert run("keys", "show", str(key).split()[0], store=file_url).exit_code == 0
