"""`semel keys` and the keys of functions: an operator's answer is what the function would have returned."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import semel
from cli.calls import HOUR_MS, SCOPE, claimed, run, run_json
from semel import Key
from semel.codecs import responses
from semel.store import Store

FUNCTION = "shop.charge"


class Declined(Exception):
    pass


class Broken(Exception):
    pass


@dataclass
class Receipt:
    order: str
    amount: Decimal
    at: datetime


class Shop:
    """A function that breaks in the middle, with a ledger of how often it ran."""

    def __init__(self, url: str) -> None:
        self.effects: list[str] = []

        @semel.idempotent(store=url, key="order", scope=FUNCTION)
        def charge(order: str) -> object:
            self.effects.append(order)
            raise Broken

        self.charge = charge
        with pytest.raises(Broken):
            charge("order-1")
        with pytest.raises(semel.OutcomeUnknown):
            charge("order-1")


def resolve(url: str, *words: str, key: str = "order-1", given: str = "") -> tuple[int, str]:
    from click.testing import CliRunner

    from semel.cli.group import semel as program

    asked = ("keys", "resolve", key, "--yes", *words)
    done = CliRunner().invoke(program, asked, input=given, env={"SEMEL_STORE": url}, prog_name="semel")
    return done.exit_code, done.output


def test_json_becomes_what_the_function_would_have_returned(url: str, store: Store) -> None:
    shop = Shop(url)
    assert resolve(url, "--answer", "-", given='{"receipt": 7, "lines": [1.5, null]}')[0] == 0
    assert [shop.charge("order-1") for _ in range(2)] == [{"receipt": 7, "lines": [1.5, None]}] * 2
    assert shop.effects == ["order-1"]


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        (("--answer", "-"), "receipt 7", "give its return value as JSON"),
        (
            ("--answer", "-", "--status", "201"),
            "{}",
            "and this key is a function's",
        ),
        (("--answer", "-", "--header", "a:b"), "{}", "--status and --header are for HTTP"),
        (("--answer", "-", "--format", responses.FORMAT), "{}", "the key is a function's, and 'http.1' is not"),
        (("--answer", "-", "--failed"), "{}", "--failed is for another --format"),
    ],
)
def test_what_is_no_answer_of_a_function_is_refused_and_changes_nothing(
    file_url: str, words: tuple[str, ...], given: str, told: str
) -> None:
    shop = Shop(file_url)
    status, output = resolve(file_url, *words, given=given)
    assert status == 2
    assert told in " ".join(output.split())
    with pytest.raises(semel.OutcomeUnknown):
        shop.charge("order-1")
    assert shop.effects == ["order-1"]


def test_a_value_is_refused_for_the_key_of_a_request(file_url: str, file_store: Store) -> None:
    key = Key("", SCOPE, "order-1")
    file_store.claim(key, "1.digest", owner="o", lease_ms=1, retention_ms=HOUR_MS, takeover=False)
    status, output = resolve(file_url, "--answer", "-", "--format", "value.1", given="1")
    assert status == 2
    assert "the key is an HTTP request's" in " ".join(output.split())


def test_many_functions_are_resolved_from_a_file(file_url: str, tmp_path: Path) -> None:
    shop = Shop(file_url)
    [line] = [json.loads(line) for line in run("stuck", "--json-lines", store=file_url).stdout.splitlines()]
    verdicts = tmp_path / "verdicts.jsonl"
    for answer, status in (({"status": 201, "json": 7}, 1), ({"format": "value.1", "json": 7}, 0)):
        verdicts.write_text(json.dumps(line | {"verdict": "answer", "answer": answer}))
        done = run("keys", "resolve-many", str(verdicts), "--yes", store=file_url)
        assert done.exit_code == status, done.output
        assert ("the key is a function's" in done.output) == bool(status)
    assert shop.charge("order-1") == 7
    assert shop.effects == ["order-1"]


def test_what_a_function_stored_is_shown_as_data(file_url: str) -> None:
    receipt = Receipt("order-1", Decimal("10.50"), datetime(2026, 1, 2, tzinfo=UTC))

    def made(order: str) -> tuple[Receipt, dict[int, bytes], set[int]]:
        return receipt, {7: b"\x00"}, {2**70}

    def declined(order: str) -> str:
        raise Declined("no money")

    semel.run("made", made, "order-1", store=file_url, scope=FUNCTION)
    with pytest.raises(Declined):
        semel.run("declined", declined, "order-1", store=file_url, scope=FUNCTION, final_errors=[Declined])
    shown = run_json("keys", "show", "made", store=file_url)["answer"]["returned"]
    content = {"order": "order-1", "amount": "10.50", "at": "2026-01-02 00:00:00+00:00"}
    assert shown == [{"class": f"{__name__}.Receipt", "content": content}, {"7": "(binary) 00"}, [2**70]]
    assert run_json("keys", "show", "declined", store=file_url)["answer"]["raised"]["class"] == f"{__name__}.Declined"
    assert "10.50" in run("keys", "show", "made", store=file_url).stdout
    assert "no money" in run("keys", "show", "declined", store=file_url).stdout


def test_a_result_that_was_not_kept_says_why(file_url: str) -> None:
    policy = semel.Policy(result_max=3)
    semel.run("large", str.upper, "long enough", store=file_url, scope=FUNCTION, returns=str, policy=policy)
    assert run_json("keys", "show", "large", store=file_url)["answer"]["kept"] is False
    assert "Policy.result_max is 3" in run("keys", "show", "large", store=file_url).stdout


def test_a_damaged_value_is_shown_as_bytes(file_url: str, file_store: Store) -> None:
    key = Key("", FUNCTION, "damaged")
    assert file_store.complete(claimed(file_store, key), semel.Result("value.1", b"\xc1"), retention_ms=HOUR_MS)
    assert run_json("keys", "show", "damaged", store=file_url)["answer"]["body"].endswith("c1")
