"""Faults of relays, outboxes and consumers, each of which the simulation must notice."""

from __future__ import annotations

from mutants.fault import Fault

PLAN, LANES, RELAY, MODEL = "core/relay.py", "outbox/lanes.py", "outbox/relay.py", "core/outbox_model.py"
CONSUMER, VERDICTS = "core/consumer.py", "core/verdicts.py"
FAILURES, SETTINGS = "inbox/failures.py", "inbox/settings.py"
TRIES, LEASES = "inbox/transactions.py", "inbox/leases.py"

FAULTS = [
    Fault(
        "a relay settles before it publishes",
        PLAN,
        "    sent = yield from do(\n",
        "    yield from do(SettleMessages(owner, tuple(each.sequence for each in taken)))\n    sent = yield from do(\n",
    ),
    Fault(
        "a relay does not look at its clock before each message",
        LANES,
        " and self._clock_ms() < self._asked.start_until_ms",
        "",
    ),
    Fault(
        "a lease begins when the reply comes",
        PLAN,
        "    ends_ms = began_ms + settings.lease_ms\n",
        "    began_ms = yield from do(ReadClock())\n    ends_ms = began_ms + settings.lease_ms\n",
    ),
    Fault(
        "a broker that is away costs attempts",
        LANES,
        "            return Fate.AWAY, str(error) or type(error).__name__\n",
        "            return Fate.FAILED, str(error)\n",
    ),
    Fault(
        "no confirmation in time is a confirmation",
        LANES,
        "            return Fate.AWAY, f",
        "            return Fate.PUBLISHED, f",
    ),
    Fault(
        "a lane goes on after a failure",
        LANES,
        "                if sent.fate is not Fate.PUBLISHED:\n                    break\n",
        "",
    ),
    Fault("a relay that was asked to stop goes on", LANES, " and not self._is_stopping()", ""),
    Fault(
        "a relay that is cancelled drops what it publishes",
        RELAY,
        "            self.stop()\n            await asyncio.wait({work})\n            raise\n",
        "            raise\n",
    ),
    Fault(
        "untried messages are counted",
        PLAN,
        "            untried.append(each.sequence)\n",
        "            failed.append(FailedMessage(each.sequence, error, 0))\n",
    ),
    Fault("a message is given up one attempt early", PLAN, "attempt >= attempts_max", "attempt + 1 >= attempts_max"),
    Fault(
        "a leased message does not block its key",
        MODEL,
        "    return entry.state is MessageState.WAITING or (",
        "    return (entry.state is MessageState.WAITING and not entry.owner) or (",
    ),
    Fault(
        "a dead message does not block its key",
        MODEL,
        "(call.dead_block and entry.state is MessageState.DEAD)",
        "False",
    ),
    Fault("a message is taken from a live lease", MODEL, "entry.lease_until_ms <= now_ms and ", ""),
    Fault("a message that failed does not wait", MODEL, " and entry.available_ms <= now_ms", ""),
    Fault("anybody settles", MODEL, " and entry.owner == call.owner", ""),
    Fault(
        "what commits late is skipped",
        MODEL,
        "    for entry in outbox.in_order():\n        key",
        "    last = max((entry.sequence for entry in outbox.of_state(MessageState.PUBLISHED)), default=0)\n"
        "    for entry in outbox.in_order():\n"
        "        if entry.sequence < last and entry.message.attempt == 0:\n"
        "            continue\n"
        "        key",
    ),
    Fault(
        "waiting messages are purged",
        MODEL,
        "sorted(outbox.of_state(MessageState.PUBLISHED), ",
        "sorted(outbox.in_order(), ",
    ),
    Fault(
        "a failed delivery is acknowledged",
        VERDICTS,
        "    Handling.RAISED: VerdictRow(Settling.DELIVER_AGAIN",
        "    Handling.RAISED: VerdictRow(Settling.ACKNOWLEDGE",
    ),
    Fault(
        "a delivery is acknowledged while the store is away",
        VERDICTS,
        "Handling.STORE_AWAY: VerdictRow(Settling.STOP)",
        "Handling.STORE_AWAY: VerdictRow(Settling.ACKNOWLEDGE)",
    ),
    Fault(
        "an unknown outcome is acknowledged",
        VERDICTS,
        "Handling.UNKNOWN: VerdictRow(Settling.PARK)",
        "Handling.UNKNOWN: VerdictRow(Settling.ACKNOWLEDGE)",
    ),
    Fault(
        "a message that another consumer handles is acknowledged",
        VERDICTS,
        "Handling.IN_PROGRESS: VerdictRow(Settling.DELIVER_AGAIN)",
        "Handling.IN_PROGRESS: VerdictRow(Settling.ACKNOWLEDGE)",
    ),
    Fault(
        "a message that is in progress is counted",
        CONSUMER,
        "    if tried.handling is Handling.RAISED:\n",
        "    if tried.handling in (Handling.RAISED, Handling.IN_PROGRESS):\n",
    ),
    Fault(
        "a message never uses up its attempts", CONSUMER, "    if attempt == limits.attempts_max:\n", "    if False:\n"
    ),
    Fault(
        "a copy in a batch is acknowledged whatever became of the first",
        CONSUMER,
        "    if first.settling is Settling.ACKNOWLEDGE:\n",
        "    if True:\n",
    ),
    Fault(
        "a commit without an answer counts as done",
        FAILURES,
        "            return Tried(Handling.UNCOMMITTED, reason, again=True)  # the",
        "            return Tried(Handling.HANDLED, reason)  # the",
    ),
    Fault(
        "a record that was not stored counts as stored",
        FAILURES,
        'return Tried(Handling.STORE_AWAY, f"it was',
        'return Tried(Handling.HANDLED, f"it was',
    ),
    Fault(
        "a duplicate is handled again",
        LEASES,
        "                    return Tried(Handling.DUPLICATE)\n",
        "                    pass\n",
        times=2,
    ),
    Fault(
        "a message is marked although its handler raised",
        TRIES,
        "                raise\n            self._close(received, progress)\n",
        "            self._close(received, progress)\n",
        times=2,
    ),
    Fault(
        "a batch that was rolled back counts as handled",
        TRIES,
        "        except Exception:\n            return None\n",
        "        except Exception:\n            return tuple(Tried(Handling.HANDLED) for _ in several)\n",
        times=2,
    ),
    Fault(
        "payloads are not compared",
        SETTINGS,
        '            return NamedMessage(key, digest((b"payload", delivery.payload)))\n',
        "            return NamedMessage(key)\n",
    ),
]
