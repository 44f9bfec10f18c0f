"""Many relays on one outbox: no message is held twice, and the order of each key is kept."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semel.core.messages import Message
from semel.core.outbox import CountMessages, FailedMessage, OutboxCounts, SettleMessages, Taken
from stores.outboxes import Ask, Place, SqlitePlace, message, open_asking, open_async_asking, place_of, take

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


def patient(place: Place) -> str:
    """The URL of a store that waits longer, because all of these relays share a small machine with other tests."""
    return f"{place.url}?{'busy_timeout_ms' if isinstance(place, SqlitePlace) else 'timeout_ms'}=60000"


class Ledger:
    """What relays hold and have published, as they saw it themselves. `key-3` is the third message of its key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, str] = {}
        self._published: dict[str | None, set[int]] = defaultdict(set)
        self.problems: list[str] = []
        self.published = 0

    def hold(self, owner: str, taken: list[Taken]) -> None:
        with self._lock:
            batch: dict[str | None, set[int]] = defaultdict(set)
            for each in taken:
                key, number = each.message.key, int(each.message.id.rpartition("-")[2])
                if each.sequence in self._held or number in self._published[key]:
                    self.problems.append(f"{each.message.id} is held by {owner} and {self._held.get(each.sequence)}")
                done = self._published[key] | batch[key]
                if key is not None and len(done & set(range(number))) < number:
                    self.problems.append(f"{each.message.id} was taken by {owner} before an earlier one was published")
                batch[key].add(number)
                self._held[each.sequence] = owner

    def let_go(self, each: Taken, *, published: bool) -> None:
        with self._lock:
            del self._held[each.sequence]
            if published:
                self.published += 1
                self._published[each.message.key].add(int(each.message.id.rpartition("-")[2]))


class Takers:
    """Relays that take, publish some of what they took, and give the rest back."""

    def __init__(self, ledger: Ledger, total: int) -> None:
        self.ledger, self.total = ledger, total

    def run(self, number: int, ask: Ask) -> None:
        try:
            self._run(number, ask)
        except BaseException as error:
            self.ledger.problems.append(f"relay {number}: {error!r}")  # the others end, too
            raise

    def _run(self, number: int, ask: Ask) -> None:
        chance, round = random.Random(number), 0
        while self.ledger.published < self.total and not self.ledger.problems:
            round += 1
            owner = f"relay {number} round {round}"
            taken = list(take(ask, owner, chance.randint(1, 12)))
            self.ledger.hold(owner, taken)
            lanes: dict[object, list[Taken]] = defaultdict(list)
            for each in taken:
                lanes[each.message.key or each.sequence].append(each)
            published: list[int] = []
            failed: list[FailedMessage] = []
            untried: list[int] = []
            for lane in lanes.values():
                good = chance.randint(0, len(lane)) if chance.random() < 0.2 else len(lane)
                for place, each in enumerate(lane):
                    self.ledger.let_go(each, published=place < good)
                    if place < good:
                        published.append(each.sequence)
                    elif place == good and chance.random() < 0.5:
                        failed.append(FailedMessage(each.sequence, "busy", chance.randint(0, 3)))
                    else:
                        untried.append(each.sequence)
            if taken:
                settled = ask(SettleMessages(owner, tuple(published), tuple(failed), untried=tuple(untried)))
                if settled != len(taken):
                    self.ledger.problems.append(f"{owner} settled {settled} of {len(taken)}")


def produce(place: Place, keys: list[str | None], each_of: int) -> None:
    """Add messages of all keys in turns, in transactions of one to five, beside the relays."""
    chance = random.Random(7)
    messages: list[Message] = [message(f"{key}-{number}", key) for number in range(each_of) for key in keys]
    while messages:
        count = chance.randint(1, 5)
        place.add(*messages[:count])
        del messages[:count]


@pytest.mark.parametrize("relays", [2, 8])
@pytest.mark.parametrize("keys", [["hot"], ["a", "b", "c", None], [f"key{number}" for number in range(40)]], ids=len)
def test_relays_in_threads(place: Place, relays: int, keys: list[str | None]) -> None:
    total = 240
    ledger = Ledger()
    takers = Takers(ledger, total)
    opened: list[tuple[Ask, Callable[[], None]]] = [open_asking(patient(place)) for _ in range(relays)]
    with ThreadPoolExecutor(relays + 1) as threads:
        running = [threads.submit(produce, place, keys, total // len(keys))]
        running += [threads.submit(takers.run, number, ask) for number, (ask, _) in enumerate(opened)]
        for each in running:
            each.result()
    for ask, close in opened:
        counts: OutboxCounts = ask(CountMessages())
        close()
    assert not ledger.problems, ledger.problems[:5]
    assert (counts.waiting, counts.published, counts.dead) == (0, total, 0)


def test_relays_in_tasks(place: Place) -> None:
    """All of them on one store, in one event loop."""
    total, ledger = 200, Ledger()
    takers = Takers(ledger, total)
    produce(place, ["a", "b", "c", None], total // 4)
    ask, close = open_async_asking(patient(place))
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(takers.run, number, ask) for number in range(8)]:
            each.result()
    close()
    assert not ledger.problems, ledger.problems[:5]
