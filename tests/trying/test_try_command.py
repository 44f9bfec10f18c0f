"""The command: what it refuses, what it asks, and what it says when it cannot try."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel.cli.probe import try_
from trying.services import CALLERS, Shop, by_semel, order, served

HERE = "http://127.0.0.1:9/orders"
ALICE = f"Authorization: {CALLERS[0]}"


def run(*args: str) -> Result:
    return CliRunner().invoke(try_, list(args))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["POST", "orders"], "write it whole, like http://127.0.0.1:8000/orders"),
        (["POST", "ftp://127.0.0.1/orders"], "write it whole"),
        (["POST", "http://127.0.0.1:port/orders"], "port"),
        (["POST", "http://["], "Invalid IPv6 URL"),
        (["POST", "http://127.0.0.1:1/bücher"], "percent-encode what is not plain ASCII"),
        (["POST", "http://127.0.0.1:1/two words"], "a blank as %20"),
        (["PO ST", HERE], "METHOD 'PO ST': write one word"),
        (["POST", HERE, "--key-header", "My Key"], "--key-header 'My Key': write the name of a header"),
        (["POST", HERE, "-H", "no colon"], "a header is written 'Name: value'"),
        (["POST", HERE, "-H", "A: b\r\nc: d"], "a header is written 'Name: value'"),
        (["POST", HERE, "-H", "idempotency-key: mine"], "each try brings a key of its own"),
        (["POST", HERE, "--identity", "bob"], "a header is written 'Name: value'"),
        (["POST", HERE, "-d", "@/no/such/file"], "@/no/such/file: No such file"),
        (["POST", HERE, "--parallel", "1"], "2<=x<=200"),
        (["POST", "http://api.example.com/orders"], "up to 30 real requests to http://api.example.com/orders"),
        (["POST"], "Missing argument 'URL'"),
    ],
)
def test_what_is_not_understood(args: list[str], message: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_service_that_is_not_there() -> None:
    result = run("POST", HERE)
    assert result.exit_code == 1
    assert "the first request was not accepted: ConnectionRefusedError" in result.stderr
    assert "Is the service running" in result.stderr


def test_a_request_that_is_not_accepted_says_nothing_about_repeats() -> None:
    shop = Shop()
    with served(shop, by_semel) as url:
        result = run("POST", f"{url}/orders", "-d", order())
        assert (result.exit_code, "401" in result.stderr, "-H 'Authorization: …'" in result.stderr) == (1, True, True)
        result = run("POST", f"{url}/orders", "-d", "{}", "-H", ALICE)
        assert (result.exit_code, "Give a request that succeeds" in result.stderr) == (1, True)
    assert shop.ledger == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("exit 3", "failed with 3"),
        ("echo nothing", "no number found"),
        ("{url}/nowhere", "404, and 200 with a number is needed"),
    ],
)
def test_effects_that_cannot_be_counted(source: str, message: str) -> None:
    shop = Shop()
    with served(shop, by_semel) as url:
        result = run("POST", f"{url}/orders", "-d", order(), "-H", ALICE, "--effects", source.format(url=url))
    assert result.exit_code == 1
    assert message in result.stderr
    assert shop.ledger == [], "nothing is sent when it could not be judged"


def test_in_a_process_of_its_own_with_a_body_from_a_file(tmp_path: Path) -> None:
    (body := tmp_path / "order.json").write_text(order())
    with served(shop := Shop(), by_semel) as url:
        command = [sys.executable, "-c", "from semel.cli.probe import try_; try_()"]
        done = subprocess.run(
            [*command, "post", f"{url}/orders?trace=s3cret", "-d", f"@{body}", "-H", ALICE, "--parallel", "3"],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={"PYTHONIOENCODING": "utf-8"},
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"POST {url}/orders?trace=…" in done.stdout
    assert "✔ 3 times at once" in done.stdout
    assert len(shop.ledger) == 5
