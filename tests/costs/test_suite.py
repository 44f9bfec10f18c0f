"""The benchmark suite runs, on tiny counts, and its page is what its results say. No test looks at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # where `benchmarks` is


def run(*words: str, module: str = "benchmarks", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}/tests"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_parts_that_need_no_network_run(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    out = tmp_path / "results.json"
    servers = {"SEMEL_TEST_POSTGRES_URL": postgres_url, "SEMEL_TEST_REDIS_URL": redis_url}
    run("--size", "tiny", "--only", "in-process,store,transaction,growth,purge,at-size", "--out", str(out), **servers)
    parts = json.loads(out.read_text())["parts"]
    assert set(parts) == {"in-process", "store", "transaction", "growth", "purge", "at-size"}
    for name, part in parts.items():
        assert part["measures"], f"{name} measured nothing"
        assert all(value >= 0 for each in part["measures"] for value in each["values"]), name


def test_every_way_can_be_traced(postgres_url: str, redis_url: str) -> None:
    servers = {"SEMEL_TEST_POSTGRES_URL": postgres_url, "SEMEL_TEST_REDIS_URL": redis_url}
    _, *ways = run(module="benchmarks.trace", **servers).splitlines()
    assert len(ways) == 13
    assert all(int(way.split()[1]) > 0 for way in ways)
    steps = run("memory-replay", module="benchmarks.trace", **servers).splitlines()
    assert steps[0].startswith("IdempotencyMiddleware.__call__")
    assert any(line.lstrip().startswith("decide ") for line in steps)


def test_every_peer_that_is_installed_is_a_contender_and_every_other_one_says_why_not() -> None:
    from benchmarks import least, on_django, peers

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["peers"]
    installed = {re.split(r"[^a-z0-9-]", each)[0] for each in wanted} - {"django"}
    contenders = {who for who, _ in peers.PEERS} - set(least.LEAST) | {on_django.DRF_IDEMPOTENCY}
    assert installed == contenders
    assert not contenders & set(peers.ABSENT)
    assert all(peers.ABSENT.values())


@pytest.mark.parametrize(("who", "expected"), [("semel", True), ("fastapi-idempotency-key", False)])
def test_it_is_seen_who_answers_before_it_has_stored(who: str, expected: bool, tmp_path: Path) -> None:
    from benchmarks import answering, places, serving

    from servers.postgres import Postgres

    url = f"sqlite:///{tmp_path}/a.db"
    with serving.AppServer(who, "sqlite", url) as server:
        assert [status for status, _ in server.pay(["makes-the-file"])] == [200]
        assert answering.stores_first(server, places.Places(tmp_path, Postgres("postgresql://"), ""), url) is expected


def test_the_page_says_what_was_measured() -> None:
    run("--check")
