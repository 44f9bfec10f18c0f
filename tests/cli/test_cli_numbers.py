"""Numbers beyond any bound: an error that names the option and its limit, and never a traceback."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.calls import claimed, run
from cli.test_cli_program import EVERY
from semel import Key
from semel.store import Store

ENDLESS = "99999999999999999999999"
GATEWAY = "gateway"  # its settings are checked by its own tests
NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
NEEDED = {
    ("keys", "show"): ("order-1",),
    ("keys", "resolve"): ("order-1", "--nothing-done", "--yes"),
    ("keys", "delete"): ("order-1", "--yes"),
    ("keys", "release"): ("order-1", "--yes"),
    ("keys", "expire"): ("order-1", "--yes"),
    ("try",): ("POST", "http://127.0.0.1:1/"),
    ("relay",): ("--to", "http://127.0.0.1:1/"),
    ("tail",): ("--from-start",),
    ("stuck",): ("--sort", "created"),
    ("keys", "list"): ("--sort", "created"),
}


def numbers() -> Iterator[tuple[tuple[str, ...], click.Option]]:
    for path, command in EVERY.items():
        for option in command.params:
            if path[0] != GATEWAY and isinstance(option, click.Option) and isinstance(option.type, NUMBERS):
                yield path, option


CASES = list(numbers())


@pytest.mark.parametrize("number", [ENDLESS, "9" * 5_000, "-1", "nan", "inf"], ids=lambda text: text[:9])
@pytest.mark.parametrize(("path", "option"), CASES, ids=[f"{' '.join(path)} {each.opts[-1]}" for path, each in CASES])
def test_a_number_beyond_its_limit(
    file_url: str, file_store: Store, path: tuple[str, ...], option: click.Option, number: str
) -> None:
    claimed(file_store, Key("shop", "POST /payments", "order-1"))
    done = run(*path, *NEEDED.get(path, ()), f"{option.opts[-1]}={number}", store=file_url)
    assert done.exit_code == 2, done.output
    assert f"'{option.opts[-1]}'" in done.stderr
    assert "Traceback" not in done.output
    limits = getattr(option.type, "max", None)
    assert limits is not None, "without an upper limit, some number breaks what counts with it"
    if number == ENDLESS:
        assert f"{limits:g}" in done.stderr or str(limits) in done.stderr


def test_there_are_such_options() -> None:
    assert len(CASES) >= 15


def test_the_greatest_number_is_taken(file_url: str, file_store: Store) -> None:
    claimed(file_store, Key("shop", "POST /payments", "order-1"))
    most = "1000000000"
    assert run("keys", "list", "--limit", most, "--sort", "created", "--scan-max", most, store=file_url).exit_code == 0
    assert run("stats", "--top", most, "--scan-max", most, store=file_url).exit_code == 0
    assert run("tail", "--from-start", "--limit", most, "--events", "1", store=file_url).exit_code == 0
    assert run("purge", "--limit", most, "--rate", most, store=file_url).exit_code == 0
    assert run("keys", "show", "order-1", "--body-max", most, store=file_url).exit_code == 0


@pytest.mark.parametrize("text", ["99999999999w", "1e9d", "nan", "-1s", "999999999w"])
def test_a_duration_beyond_its_limit(file_url: str, file_store: Store, tmp_path: Path, text: str) -> None:
    for words in (("stuck", "--older-than"), ("tail", "--every"), ("keys", "list", "--older-than")):
        done = run(*words, text, store=file_url)
        assert done.exit_code == 2
        assert f"'{words[-1]}'" in done.stderr
