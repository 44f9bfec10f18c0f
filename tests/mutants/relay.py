"""Faults in a relay: order, attempts, leases, and what a relay leaves behind when it stops."""

from mutants.fault import Fault

PLAN, LANES, RELAY = "core/relay.py", "outbox/lanes.py", "outbox/relay.py"

FAULTS = [
    Fault(
        "messages of one key are published side by side",
        PLAN,
        'key = each.message.key if order == "key" else None',
        "key = None",
    ),
    Fault(
        "while the broker is away attempts are counted",
        PLAN,
        "        elif each.fate is Fate.FAILED:\n",
        "        elif each.fate in (Fate.FAILED, Fate.AWAY):\n",
    ),
    Fault("a batch is settled once, or not at all", PLAN, "if is_last or now_ms + pause_ms >= ends_ms:", "if True:"),
    Fault("no message is ever given up", PLAN, "attempt >= attempts_max", "attempt > 1_000_000"),
    Fault(
        "a message may be started until the lease ends",
        PLAN,
        "began_ms + settings.lease_ms - settings.timeout_ms - settings.lease_ms // 8",
        "began_ms + settings.lease_ms",
    ),
    Fault("dead messages never block their key", PLAN, "by_key and settings.dead_block", "False"),
    Fault(
        "a relay that was stopped past its lease goes on",
        LANES,
        " and self._clock_ms() < self._asked.start_until_ms",
        "",
    ),
    Fault(
        "a lane goes on after a message that failed",
        LANES,
        "if sent.fate is not Fate.PUBLISHED:",
        "if sent.fate is Fate.AWAY:",
    ),
    Fault("the other lanes go on while the broker is away", LANES, "not self._is_away and ", ""),
    Fault("stop() is not heard in the middle of a batch", LANES, " and not self._is_stopping()", ""),
    Fault(
        "a reset connection is the message's failure",
        LANES,
        "BrokerMisconfigured, ConnectionError, socket.gaierror)",
        "BrokerMisconfigured)",
    ),
    Fault("the broker may take any time to confirm", LANES, "self._asked.timeout_ms / 1000):", "3_600):"),
    Fault("all batches have one owner", RELAY, "secrets.token_hex(16)", '"relay"'),
    Fault(
        "cancellation cuts messages off",
        RELAY,
        "            self.stop()\n            await asyncio.wait({work})\n            raise",
        "            raise",
    ),
    Fault(
        "a store that cannot tell of messages ends the relay",
        RELAY,
        "        except StoreError:",
        "        except KeyError:",
    ),
]
