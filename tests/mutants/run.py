"""`make mutants`: seeds one fault at a time into a copy of the package and shows that the store's tests notice it.

A fault counts as noticed when an assertion of the suite fails. A crash does not count: it would say that the fault
was too coarse. `python tests/mutants/run.py sqlite redis` runs only what it names.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

TESTS = Path(__file__).resolve().parent.parent
sys.path[0] = str(TESTS)  # not this folder, whose redis.py is not the driver

from mutants.fault import Fault  # noqa: E402
from servers.mariadb import MariadbServer  # noqa: E402
from servers.postgres import PostgresServer  # noqa: E402
from servers.redis import RedisServer  # noqa: E402

STORES = {"model": "memory", "sqlite": "sqlite", "postgres": "postgres", "redis": "redis", "mariadb": "mariadb"}
"""Lists of faults, and whose tests must notice them."""
STORE_TESTS = {"mariadb": ["tests/stores/test_mariadb_batches.py"]}
"""Tests of a store that are run before its contract."""
OTHERS = {
    "inbox": [
        "tests/core/test_consumer.py",
        "tests/inbox/test_consumer_leases.py",
        "tests/inbox/test_consumer_transactions.py",
    ],
    "sealed": ["tests/hostile/test_sealed.py"],
    "transaction": [
        "tests/transaction/test_transaction_schema.py",
        "tests/transaction/test_transaction_sealed.py",
        "tests/transaction/test_transaction_pipelines.py",
        "tests/transaction/test_publish.py",
        "tests/transaction/test_receive.py",
        "tests/flow/test_flow_sealed.py",
    ],
    "outbox": ["tests/stores/test_outbox.py"],
    "mariadb_transaction": ["tests/transaction/test_transaction_mariadb.py", "-k", "not django"],
    "mariadb_outbox": ["tests/stores/test_outbox.py", "-k", "(mariadb and not Purge) or between_the_steps"],
    "journal": [
        "tests/core/test_journal_model.py",
        "tests/client/test_journal_files.py",
        "tests/client/test_journal_sealed.py",
        "tests/client/test_resume.py",
        "tests/client/test_journal_refusals.py",
    ],
    "tiered": [
        "tests/stores/test_tiered_judgement.py",
        "tests/stores/test_tiered_faults.py",
        "tests/stores/test_tiered_copiers.py",
        "tests/test_opening.py",
    ],
    "dynamodb": [
        "tests/stores/test_dynamodb_table.py",
        "tests/stores/test_dynamodb_scans.py",
        "tests/stores/test_dynamodb_faults.py",
        "tests/stores/test_dynamodb.py",
        "-k",
        "not moto",
    ],
    "relay": ["tests/core/test_relay.py", "tests/outbox/test_relay_model.py"],
    "redis_cluster": [
        "tests/stores/test_redis_route.py",
        "tests/stores/test_redis_places.py",
        "tests/stores/test_redis_cluster_faults.py",
        "tests/stores/test_redis_sentinel.py",
    ],
}
"""Lists of other faults, and all the tests that must notice them. DynamoDB's run on the faster of its servers."""
LISTS = [*STORES, *OTHERS]
SERVERS: dict[str, Callable[[], PostgresServer | RedisServer | MariadbServer]] = {
    "postgres": PostgresServer,
    "redis": RedisServer,
    "mariadb": MariadbServer,
}
AT_ONCE = 2
CHOSEN = "Store and not PgBouncer"
"""The contract on the store itself, both faces."""
SURVIVED = "SURVIVED"
ASSERTED = ("AssertionError", "assert ", "Failed: DID NOT RAISE")


@dataclass(frozen=True)
class Verdict:
    killed: bool
    by: str
    seconds: float


def judge(fault: Fault | None, store: str, original: Path, servers: dict[str, str]) -> Verdict:
    """Run the tests on a copy of the package with the fault in it, up to the first failure."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semel-mutant-") as folder:
        source = Path(folder, "src")
        shutil.copytree(original, source)
        if fault is not None:
            fault.seed(source / "semel")
        report = Path(folder, "report.xml")
        environment = os.environ | servers | {"PYTHONPATH": str(source), "SEMEL_PARITY_EXAMPLES": "10", "CI": "1"}
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=60", f"--junitxml={report}"]
        tests = OTHERS.get(store) or [
            *STORE_TESTS.get(store, ()),
            f"tests/stores/test_{STORES[store]}.py",
            "-k",
            CHOSEN,
        ]
        command = [sys.executable, "-c", RUN, str(source), *tests, *options]
        run = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)
        killed, by = verdict_of(report, run)
    return Verdict(killed, by, time.monotonic() - started)


RUN = """
import sys, semel, pytest
assert semel.__file__.startswith(sys.argv[1]), semel.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


def verdict_of(report: Path, run: subprocess.CompletedProcess[str]) -> tuple[bool, str]:
    if run.returncode == 0:
        return False, SURVIVED
    if not report.exists():
        return False, f"NO REPORT: {run.stdout[-500:]}{run.stderr[-500:]}"
    for case in ElementTree.parse(report).iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            message = problem.get("message", "")
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            if problem.tag == "failure" and message.startswith(ASSERTED):
                return True, name
            return False, f"NO ASSERTION in {name}: {message[:300]}"
    return False, f"NO FAILURE: {run.stdout[-500:]}"


@contextmanager
def places(stores: list[str]) -> Iterator["SimpleQueue[dict[str, str]]"]:
    """Two places to run tests, each with servers of its own."""
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    with ExitStack() as running:
        for _ in range(AT_ONCE):
            needed = {store.partition("_")[0] for store in stores}
            servers = {name: start() for name, start in SERVERS.items() if name in needed}
            for server in servers.values():
                running.enter_context(server)
            free.put({f"SEMEL_TEST_{name.upper()}_URL": server.url for name, server in servers.items()})
        yield free


def report(stores: list[str], faults: list[tuple[str, Fault | None]], original: Path) -> int:
    """Print a line for each fault as it is judged. How many were not noticed, or noticed where there was none."""
    wrong = 0
    with places(stores) as free, ThreadPoolExecutor(AT_ONCE) as threads:

        def take(store: str, fault: Fault | None) -> Verdict:
            place = free.get()
            try:
                return judge(fault, store, original, place)
            finally:
                free.put(place)

        verdicts = [threads.submit(take, store, fault) for store, fault in faults]
        for (store, fault), found in zip(faults, verdicts, strict=True):
            verdict = found.result()
            fine = verdict.killed if fault else verdict.by == SURVIVED
            if fault:
                mark = "killed" if fine else "ALIVE "
                print(f"  {mark} {fault.breaks:<50} {verdict.seconds:5.1f} s  {verdict.by}", flush=True)
            else:
                said = "pass" if fine else f"should pass: {verdict.by}"
                print(f"\n{store}: without a fault all tests {said} ({verdict.seconds:.1f} s)", flush=True)
            wrong += not fine
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", metavar="store", help=f"{', '.join(LISTS)}; without a name, all of them")
    stores: list[str] = parser.parse_args().stores or LISTS
    if strangers := set(stores) - set(LISTS):
        parser.error(f"no faults for {', '.join(sorted(strangers))}; there are lists for {', '.join(LISTS)}")
    faults: list[tuple[str, Fault | None]] = []
    for store in stores:
        faults += [(store, None), *((store, fault) for fault in import_module(f"mutants.{store}").FAULTS)]
    with tempfile.TemporaryDirectory(prefix="semel-original-") as folder:
        original = Path(folder, "src")  # one state of the source for all, whatever is edited meanwhile
        shutil.copytree(TESTS.parent / "src", original, ignore=shutil.ignore_patterns("__pycache__"))
        if stale := [problem for _, fault in faults if fault and (problem := fault.stale(original / "semel"))]:
            parser.error("faults that cannot be seeded:\n" + "\n".join(stale))
        wrong = report(stores, faults, original)
    seeded = sum(fault is not None for _, fault in faults)
    print(f"\n{seeded} faults seeded, " + (f"{wrong} not noticed" if wrong else "all of them noticed"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
