"""The oracle of a history of messages: it sees every change at the outbox, the broker and the database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from semel.core.effects import Effect
from semel.core.messages import Delivery, Message
from semel.core.outbox import MessageState, OutboxEntry, PurgeMessages, RedriveMessages, SettleMessages, TakeMessages
from semel.core.outbox_model import Outbox
from semel.core.records import Key
from semel.core.verdicts import Handling, Settling, Verdict
from semel.errors import BrokerMisconfigured, BrokerUnavailable, Poison
from semel.stores.sql.digests import digest_of
from semel.stores.sql.rows import IN_PROGRESS
from simulation.messages.database import MARK
from simulation.messages.invariants import INVARIANTS
from simulation.messages.process import HANDLER, RelayProcess
from simulation.transactions.database import STATE, Transaction

if TYPE_CHECKING:
    from simulation.messages.world import MessageWorld

STOP_S = 60.0
NO_ATTEMPT = (BrokerUnavailable, BrokerMisconfigured, ConnectionError)


class Entry:
    """One run of the handler."""

    def __init__(self, number: int, id: str, payload: bytes, nth: int) -> None:
        self.number = number
        self.id = id
        self.payload = payload
        self.nth = nth
        """How often the handler has run for this message, this time included."""
        self.returned = False
        self.is_final = False


class Oracle:
    def __init__(self, world: MessageWorld) -> None:
        self.world = world
        self.requests: list[Message] = []
        """What the broker has taken."""
        self.entries: list[Entry] = []
        self.before: dict[str, frozenset[str]] = {}
        """Every committed message, and those of its key that were committed before it was added."""
        self.effects: dict[str, list[Entry]] = {}
        self.foreign: set[str] = set()
        """The ids that another sender has used, too."""
        self._buried: set[str | None] = set()
        self._discarded: set[str] = set()
        self._ever_dead: set[str] = set()
        self._confirmed: set[str] = set()
        self._poison: set[str] = set()
        self._refused: Counter[str] = Counter()
        """How often the broker refused a message, since it was last redriven."""

    def violated(self, name: str, detail: str) -> None:
        assert name in INVARIANTS, name
        self.world.violations.append((name, detail))
        self.world.note("!!!!", "{}: {}", name, detail)

    def _check(self, holds: object, name: str, detail: str) -> None:
        if not holds:
            self.violated(name, detail)

    # What a history tells every oracle, and what has no meaning here

    def begin(self, request: Any) -> int:
        raise NotImplementedError("no history of messages has requests")

    def replied(self, request: Any, response: Any) -> None: ...
    def ended(self, request: Any, error: BaseException | None) -> None: ...
    def crashed(self, process: Any) -> None: ...
    def inserted(self, transaction: Transaction, row: Any) -> None: ...
    def ends(self, transaction: Transaction) -> None: ...
    def refused(self, transaction: Transaction, error: Exception) -> None: ...
    def waited(self, params: Sequence[Any], seconds: float) -> None: ...

    # The outbox

    def committed(self, message: Message, before: frozenset[str], *, is_new: bool) -> None:
        if is_new:
            self.before[message.id] = before & self.before.keys()
        else:
            self.world.reached.add("added again")

    def changed(self, before: Outbox, after: Outbox, call: Effect[Any]) -> None:
        for sequence, old in before.entries.items():
            new = after.entries.get(sequence)
            if new is old:
                continue
            if new is None:
                self._gone(old, call)
            elif isinstance(call, TakeMessages):
                self._taken(old, after, call)
            elif isinstance(call, SettleMessages):
                self._settled(old, new, call)
            elif isinstance(call, RedriveMessages):
                self._refused[new.message.id] = 0

    def _gone(self, old: OutboxEntry, call: Effect[Any]) -> None:
        if isinstance(call, PurgeMessages):
            self.world.reached.add("purged")
            kept_ms = self.world.database_ms() - old.settled_ms
            is_due = old.state is MessageState.PUBLISHED and kept_ms >= self.world.scenario.choices.keep_ms
            self._check(is_due, "only-the-published-are-purged", f"{old.message.id} was {old.state.value}")
        else:
            self._discarded.add(old.message.id)

    def _taken(self, old: OutboxEntry, after: Outbox, call: TakeMessages) -> None:
        id, key, choices = old.message.id, old.message.key, self.world.scenario.choices
        now_ms = self.world.database_ms()
        free = old.state is MessageState.WAITING and old.lease_until_ms <= now_ms
        self._check(old.available_ms <= now_ms, "a-failed-message-waits", f"{id} was taken before its time")
        self._check(free, "a-live-lease-is-respected", f"{id} was taken from another relay")
        self.world.reached.update(["a relay overtaken"] if old.owner else [])
        if key is None or choices.order == "none":
            return
        for other in after.in_order():
            if other.message.key != key or other.sequence >= old.sequence:
                continue
            in_the_way = other.state is MessageState.WAITING and other.owner != call.owner
            is_dead = choices.dead_block and other.state is MessageState.DEAD
            self._check(not in_the_way and not is_dead, "the-head-goes-first", f"{id} was taken without an earlier one")

    def _settled(self, old: OutboxEntry, new: OutboxEntry, call: SettleMessages) -> None:
        id, attempt = old.message.id, new.message.attempt
        ours = old.owner == call.owner and old.state is MessageState.WAITING
        self._check(ours, "only-the-holder-settles", f"{id} was settled by a relay that does not hold it")
        if new.state is MessageState.PUBLISHED:
            self._check(id in self._confirmed, "published-means-confirmed", f"{id} was not confirmed")
        elif new.state is MessageState.DEAD:
            self._ever_dead.add(id)
            attempts_max = self.world.scenario.choices.attempts_max
            is_used_up = attempt == attempts_max <= self._refused[id]
            self._check(id in self._poison or is_used_up, "a-dead-message-has-a-cause", f"{id}: {new.error}")
        else:
            counted = attempt <= self._refused[id]
            self._check(counted, "an-outage-costs-no-attempt", f"{id} has {attempt} attempts: {new.error}")

    # Relays

    def starts(self, process: RelayProcess, message: Message) -> None:
        """A relay hands a message to its publisher."""
        if self.world.over:
            return
        settings, now_ms = self.world.scenario.choices, self.world.database_ms()
        entry = self.world.depot.entry_of(message.id)
        if entry is None:
            if message.id not in self.before:
                self.violated("published-only-if-committed", f"{message.id} is published")
            else:
                self.violated("only-the-holder-publishes", f"{message.id} is not in the outbox any more")
            return
        holds = entry.state is MessageState.WAITING and entry.owner in process.owners
        in_time = now_ms + settings.lease_ms // 2 <= entry.lease_until_ms
        self._check(holds and in_time, "only-the-holder-publishes", f"{message.id} is published by {process.name}")
        may_start = process.stopped_s is None or process.cancelled
        self._check(may_start, "a-stop-starts-nothing", f"{process.name} starts {message.id}")
        attempt = replace(entry.message, attempt=entry.message.attempt + 1)
        self._check(message == attempt, "one-content-per-id", f"{message.id} has changed")

    def replied_to(self, message: Message, error: Exception | None) -> None:
        if error is None:
            self._confirmed.add(message.id)
        elif isinstance(error, Poison):
            self._poison.add(message.id)
        elif not isinstance(error, NO_ATTEMPT):
            self._refused[message.id] += 1

    def accepted(self, message: Message) -> None:
        """The broker has it."""
        self.world.note("broker", "has {}", message.id)
        planned = replace(self.world.message(int(message.id[1:])), attempt=message.attempt)
        self._check(message == planned, "one-content-per-id", f"{message.id} has changed")
        known = {each.id for each in self.requests}
        self.requests.append(message)
        if message.id in known:
            self.world.reached.add("published again")
            return
        self._check(message.id in self.before, "published-only-if-committed", f"{message.id} is published")
        if message.key is None or self.world.scenario.choices.order == "none":
            return
        blocks = self.world.scenario.choices.dead_block
        for id in self.before.get(message.id, ()):
            may_be_left_out = id in self._discarded or (id in self._ever_dead and not blocks)
            self._check(id in known or may_be_left_out, "published-in-order", f"{message.id} comes before {id}")

    def relay_ended(self, process: RelayProcess, error: BaseException | None) -> None:
        self._check(error is None, "no-unexpected-exception", f"{process.name} raised {error!r}")
        if process.stopped_s is None:
            self.violated("a-relay-goes-on", f"{process.name} ended")
            return
        in_time = self.world.time.now_s - process.stopped_s < STOP_S or process.disturbed
        self._check(in_time, "a-stop-ends", f"{process.name} took too long")
        held = [entry.message.id for entry in self.world.depot.outbox.entries.values() if entry.owner in process.owners]
        if not process.unanswered:
            self._check(not held, "a-stopped-relay-holds-nothing", f"{process.name} holds {', '.join(held)}")

    # Consumers

    def entered(self, delivery: Delivery) -> Entry:
        assert delivery.id is not None
        nth = sum(entry.id == delivery.id for entry in self.entries) + 1
        entry = Entry(len(self.entries), delivery.id, delivery.payload, nth)
        self.entries.append(entry)
        return entry

    def commits(self, transaction: Transaction) -> None:
        parts: dict[int, list[int]] = {}
        for number, part in transaction.effects:
            parts.setdefault(number, []).append(part)
        handled: set[str] = set()
        for number, written in parts.items():
            entry = self.entries[number]
            whole = entry.returned and written == [0, 1]
            self._check(whole, "rows-and-record-are-one", f"a run for {entry.id} that did not return is committed")
            found = self.effects.setdefault(entry.id, [])
            found.append(entry)
            self._check(len(found) == 1, "one-effect-per-message", f"{entry.id} has {len(found)} effects")
            handled.add(entry.id)
        recorded: set[str] = set()
        for digest, row in transaction.records.items():
            if digest.startswith(MARK):
                self._count(digest.removeprefix(MARK), row[0])
            elif row[STATE] != IN_PROGRESS:
                recorded.add(row[2])
            else:
                self.violated("rows-and-record-are-one", f"the record of {row[2]} is committed before it is finished")
        self._check(recorded == handled, "rows-and-record-are-one", f"records {recorded}, rows {handled}")

    def sent(self, entry: Entry) -> None:
        """An effect that is elsewhere takes place."""
        found = self.effects.setdefault(entry.id, [])
        found.append(entry)
        may_again = self.world.scenario.choices.guarantee == "at-least-once"
        self._check(len(found) == 1 or may_again, "one-effect-per-message", f"{entry.id} has {len(found)} effects")

    def counted(self, key: Key, count: int) -> None:
        """Under a lease a handler that sent something may fail after that."""
        failed = sum(entry.id == key.name and not entry.returned for entry in self.entries)
        self._check(count <= failed, "only-failures-are-counted", f"{key.name}: {count} of {failed} are counted")

    def _count(self, digest: bytes, count: int) -> None:
        for id in {entry.id for entry in self.entries} | self.before.keys():
            if digest_of(Key("", HANDLER, id)) == digest:
                failed = sum(entry.id == id for entry in self.entries) - len(self.effects.get(id, ()))
                self._check(count <= failed, "only-failures-are-counted", f"{id}: {count} of {failed} are counted")

    def judged(self, delivery: Delivery, verdict: Verdict) -> None:
        """What a consumer tells the broker, before it does."""
        handling, id = verdict.handling, delivery.id
        done = self.effects.get(id or "", [])
        choices = self.world.scenario.choices
        may_be_unknown = choices.guarantee == "at-most-once"
        self._check(handling is not Handling.UNKNOWN or may_be_unknown, "nothing-is-unknown", f"{id}: {verdict.reason}")
        if verdict.settling is Settling.ACKNOWLEDGE:
            recorded = self._is_recorded(Key("", HANDLER, id or "-"))
            returned = any(entry.returned for entry in done)
            self._check(recorded and returned, "acknowledged-means-recorded", f"{id} is {handling.name}")
            same = all(entry.payload == delivery.payload for entry in done)
            self._check(same, "another-message-is-refused", f"another message under {id} is {handling.name}")
        if verdict.counted and id is not None:
            key = Key("", HANDLER, id)
            in_transaction = choices.guarantee == "exactly-once"
            stored = self.world.database.attempts_of(key) if in_transaction else self.world.leases.counts[key]
            self._check(stored >= verdict.attempt > 0, "told-means-counted", f"{id}: {verdict.attempt} of {stored}")
        if verdict.settling in (Settling.DEAD_LETTER, Settling.PARK):
            cause = self._has_cause(delivery, verdict)
            self._check(cause, "a-dead-letter-has-a-cause", f"{id} is {handling.name}: {verdict.reason}")
        elif handling is Handling.RAISED:
            used_up = verdict.attempt % choices.attempts_max == 0
            self._check(not used_up, "a-dead-letter-has-a-cause", f"{id} has failed {verdict.attempt} times")

    def _is_recorded(self, key: Key) -> bool:
        """Under a lease that ran out another consumer may handle it by now; it was handled all the same."""
        choices = self.world.scenario.choices
        if choices.guarantee == "exactly-once":
            return self.world.database.record_of(key) is not None
        record = self.world.leases.store.get(key)
        return record is not None and (choices.guarantee == "at-least-once" or not record.in_progress())

    def _has_cause(self, delivery: Delivery, verdict: Verdict) -> bool:
        match verdict.handling:
            case Handling.EXHAUSTED:
                return verdict.attempt % self.world.scenario.choices.attempts_max == 0
            case Handling.FINAL:
                return any(entry.id == delivery.id and entry.is_final for entry in self.entries)
            case Handling.UNNAMED:
                return delivery.id is None
            case Handling.REUSED:
                return delivery.id in self.foreign
            case Handling.UNKNOWN:
                return True  # where it may be
            case _:
                return False

    def buried(self, delivery: Delivery) -> None:
        self._buried.add(delivery.id)

    # The end

    def quiet(self) -> None:
        taken = Counter(message.id for message in self.requests)
        waiting = {entry.message.id for entry in self.world.depot.waiting()}
        for id in self.before:
            entry = self.world.depot.entry_of(id)
            is_out = taken[id] > 0 if entry is None or entry.state is MessageState.PUBLISHED else True
            is_settled = (is_out or id in self._discarded) and id not in waiting
            self._check(is_settled, "every-message-is-published", f"{id} is {entry and entry.state.value}")
        for id in taken:
            took = bool(self.effects.get(id)) or id in self._buried
            self._check(took, "every-message-takes-effect", f"{id} was published, and nothing came of it")
        is_judged = self.world.broker.is_quiet() and not self.world.database.open
        self._check(is_judged, "every-delivery-is-judged", "a delivery, or a transaction, is open")
        if self.world.calm and self.world.scenario.choices.keep_ms:
            self._check(max(taken.values(), default=1) == 1, "calm-is-perfect", "a message was published twice")
            plain = {id for id in taken if self.world.planned(id).handling == "fine"}
            alone = self.world.scenario.choices.together == 1  # else a neighbour may roll it back
            once = not alone or all(sum(entry.id == id for entry in self.entries) == 1 for id in plain)
            self._check(once and not plain & self._buried, "calm-is-perfect", "a plain message was handled twice")


def own_ms() -> int:
    """The clock of the process that runs."""
    return int(asyncio.get_running_loop().time() * 1000)
