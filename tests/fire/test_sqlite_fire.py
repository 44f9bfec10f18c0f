"""SQLite has no server to be cut off from: its files are removed under it instead, and the machine's clock jumps."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fire.cases import FACES, Ledger, Opened, execute, granted, opened, persist
from fire.cases import claim as claim_key
from semel import Key, Policy, Result, StoreMisconfigured
from semel.core.decisions import InFlight, NotStored, Replay, Run, Stored, Undecided
from semel.core.protocol import acquire, settle
from semel.core.tables import Ending
from stores.sqlite_losses import LOSSES

HOUR_S = 3600
POLICY, TAKEOVER = Policy(lease=60), Policy(lease=60, guarantee="at-least-once")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "records.db"


@pytest.fixture(params=FACES)
def one(path: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param, f"sqlite:///{path}") as one:
        yield one


def keys(count: int) -> list[Key]:
    return [Key("fire", "POST /payments", str(number)) for number in range(count)]


@pytest.mark.parametrize("loss", LOSSES)
def test_files_that_are_removed_under_a_running_service(one: Opened, path: Path, ledger: Ledger, loss: str) -> None:
    """Nothing runs any more, so nothing is acknowledged that a restarted service would not know."""
    first, later = keys(40)[:20], keys(40)[20:]
    for key in first:
        assert execute(one, key, "a", POLICY, ledger)[1] == Stored()
    running = one.drive(acquire(Key("fire", "POST /payments", "running"), "v1:same", "a", POLICY))
    assert isinstance(running, Run)
    lose, words = LOSSES[loss]
    lose(path)
    for key in later:
        decision, settlement = execute(one, key, "b", POLICY, ledger)
        assert isinstance(decision, Undecided), decision
        assert isinstance(decision.error, StoreMisconfigured)
        assert words in str(decision.error)
        assert settlement is None
    assert ledger.effects() == {key.name: 1 for key in first}
    plan = settle(running.lease, Ending.SUCCEEDED, Result("text", b"a"), Policy(lease=0.1), fingerprint="v1:same")
    assert isinstance(one.drive(plan), NotStored)  # the answer is marked, and not called stored


ENTER = """
import sys, time
from pathlib import Path
path, hours, owner, folder, guarantee = sys.argv[1:]
real_ns, real_s = time.time_ns, time.time
time.time_ns = lambda: real_ns() + int(float(hours) * 3_600_000_000_000)
time.time = lambda: real_s() + float(hours) * 3600
from fire.cases import Ledger, execute, opened
from semel import Key, Policy
with opened("sync", f"sqlite:///{path}") as one:
    key = Key("fire", "POST /payments", "0")
    print(type(execute(one, key, owner, Policy(lease=60, guarantee=guarantee), Ledger(Path(folder)))[0]).__name__)
"""


def enter_in_another_process(path: Path, hours: float, folder: Path, policy: Policy) -> str:
    """What becomes of the same request in a process that is started after the jump."""
    command = [sys.executable, "-c", ENTER, str(path), str(hours), "other", str(folder), policy.guarantee]
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tests, env={"PYTHONPATH": tests})
    return done.stdout.strip()


@pytest.mark.parametrize("hours", [25, 1, -1])
@pytest.mark.parametrize("policy", [POLICY, TAKEOVER], ids=["at most once", "at least once"])
def test_a_clock_that_jumps_while_the_work_runs(
    one: Opened, path: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int, policy: Policy
) -> None:
    [key] = keys(1)
    decision = one.drive(acquire(key, "v1:same", "a", policy))
    assert isinstance(decision, Run)
    ledger.record(key)
    real_ns, real_s = time.time_ns, time.time
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * HOUR_S * 1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: real_s() + hours * HOUR_S)
    again, _ = execute(one, key, "b", policy, ledger)
    assert isinstance(again, InFlight), again
    assert enter_in_another_process(path, hours, tmp_path, policy) == "InFlight"
    plan = settle(decision.lease, Ending.SUCCEEDED, Result("text", b"a"), policy, fingerprint="v1:same")
    assert one.drive(plan) == Stored()
    assert isinstance(execute(one, key, "b", policy, ledger)[0], Replay)
    assert enter_in_another_process(path, hours, tmp_path, policy) == "Replay"
    assert ledger.effects() == {key.name: 1}


@pytest.mark.parametrize("hours", [25, -1])
def test_a_clock_that_jumps_after_a_crash(
    one: Opened, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The lease of the dead executor lapses in its time: the key is unknown then, and never granted as a new one."""
    [key] = keys(1)
    granted(claim_key(one.store, key, "dead", lease_ms=20))
    ledger.record(key)
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * HOUR_S * 1_000_000_000)
    patience = time.monotonic() + 10
    while isinstance(decision := execute(one, key, "b", POLICY, ledger)[0], InFlight):
        assert time.monotonic() < patience, "the lease does not lapse"
        time.sleep(0.005)
    assert type(decision).__name__ == "Unknown"
    successor = granted(persist(lambda: claim_key(one.store, key, "c", takeover=True)))
    assert successor.attempt == 2
    assert ledger.effects() == {key.name: 1}
