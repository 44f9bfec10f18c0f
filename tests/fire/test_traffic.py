"""The server is killed and started again in the middle of traffic, by threads and by tasks on the same keys."""

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fire.cases import FACES, Ledger, Opened, Place, execute, migrated, opened, placed
from semel import Key, Policy, StoreUnavailable
from semel.core.decisions import Replay, Run, Stored, Undecided
from semel.core.protocol import abandon
from semel.core.records import Lease
from servers.postgres import PostgresServer
from servers.redis import RedisServer

POLICY = Policy(lease=60)
KILLS = 2
CALLERS = 4
"""For each face."""
KEYS_AT_ONCE = 8


class Traffic:
    """Callers that go on with new keys, several for each key, until they are told to end."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.ended = threading.Event()
        self.stored: dict[str, bytes] = {}
        self.replayed: dict[str, set[bytes]] = defaultdict(set)

    def call(self, one: Opened, caller: str) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            key = Key("traffic", "s", f"{number // KEYS_AT_ONCE}-{number % KEYS_AT_ONCE}")
            self.once(one, key, f"{caller}-{number}")

    def once(self, one: Opened, key: Key, owner: str) -> None:
        decision, settlement = execute(one, key, owner, POLICY, self.ledger)
        match decision, settlement:
            case Run(), Stored():
                assert self.stored.setdefault(key.name, owner.encode()) == owner.encode()
            case Replay(_, result), _:
                self.replayed[key.name].add(result.payload)
            case Undecided(), _:
                one.drive(abandon(Lease(key, owner, 1, 0)))
            case _:
                pass


@pytest.mark.parametrize("server", ["private_postgres", "private_redis"])
def test_a_server_that_is_killed_in_the_middle_of_traffic(
    server: str, request: pytest.FixtureRequest, ledger: Ledger
) -> None:
    running: PostgresServer | RedisServer = request.getfixturevalue(server)
    migrated(running.url)
    traffic = Traffic(ledger)
    with (
        placed(running.url) as place,
        opened(FACES[0], running.url) as threads,
        opened(FACES[1], running.url) as tasks,
        ThreadPoolExecutor(2 * CALLERS) as pool,
    ):
        callers: list[Any] = [
            pool.submit(traffic.call, one, f"{face}{number}")
            for face, one in zip(FACES, (threads, tasks), strict=True)
            for number in range(CALLERS)
        ]
        try:
            for _ in range(KILLS):
                wait_for_more(traffic)
                running.kill()
                for one in (threads, tasks):  # and all callers meet the same
                    with pytest.raises(StoreUnavailable):
                        one.store.get(Key("traffic", "s", "while it is away"))
                running.restart()
            wait_for_more(traffic)
        finally:
            traffic.ended.set()
        for caller in callers:
            caller.result()
        check(traffic, place)


def wait_for_more(traffic: Traffic) -> None:
    """The servers answer again: some more results were stored."""
    enough, deadline = len(traffic.stored) + 20, time.monotonic() + 60
    while len(traffic.stored) < enough:
        assert time.monotonic() < deadline, "the traffic did not come back"
        time.sleep(0.01)


def check(traffic: Traffic, place: Place) -> None:
    effects = traffic.ledger.effects()
    assert max(effects.values()) == 1, "a key took effect twice"
    for name, answer in traffic.stored.items():
        record = place.truth(Key("traffic", "s", name))
        assert record is not None
        assert record.result is not None
        assert record.result.payload == answer
        assert effects[name] == 1
    for name, answers in traffic.replayed.items():
        assert len(answers) == 1
        assert effects[name] == 1
