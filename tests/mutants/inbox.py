"""Faults in consumers: each would lose messages, double them, or say the wrong thing to the broker."""

from mutants.fault import Fault

CONSUMER, FAILURES, TRANSACTIONS = "core/consumer.py", "inbox/failures.py", "inbox/transactions.py"
SETTINGS, IDS, SQLITE = "inbox/settings.py", "inbox/ids.py", "stores/sqlite/attempts.py"

FAULTS = [
    Fault(
        "a lost reply to COMMIT counts against the handler",
        FAILURES,
        "return Tried(Handling.UNCOMMITTED, reason, again=True)  # the record",
        "return Tried(Handling.RAISED, reason)  # the record",
    ),
    Fault(
        "a message whose record was not stored is acknowledged",
        FAILURES,
        "        case Stored() | Superseded():",
        "        case Stored() | Superseded() | NotStored():",
    ),
    Fault(
        "at-most-once: a failure is delivered again",
        FAILURES,
        "Handling.RAISED if takeover else Handling.UNKNOWN",
        "Handling.RAISED",
    ),
    Fault(
        "an error that begin= hides is acknowledged",
        TRANSACTIONS,
        "            if progress.stage is not HandlingStage.COMMITTING:\n                return SWALLOWED\n",
        "",
        times=2,
    ),
    Fault(
        "a begin= that does not commit loses messages",
        TRANSACTIONS,
        "        if not self._known_to_commit:\n",
        "        self._known_to_commit = True\n        if not self._known_to_commit:\n",
        times=2,
    ),
    Fault(
        "what was declared undone is committed",
        TRANSACTIONS,
        "        if received.nothing_was_done:\n",
        "        if False:\n",
    ),
    Fault(
        "a duplicate is handled again",
        TRANSACTIONS,
        "            if received.duplicate:\n                return Handling.DUPLICATE\n",
        "            assert received.duplicate in (True, False)\n",
        times=2,
    ),
    Fault(
        "an interrupt is a failure of the message",
        TRANSACTIONS,
        "        except Exception as error:\n            return self._judge(progress, error)\n",
        "        except BaseException as error:\n            return self._judge(progress, error)  # type: ignore\n",
        times=2,
    ),
    Fault("an id is invented", IDS, 'return None, "it has no message id"', 'return str(id(delivery)), ""'),
    Fault(
        "another payload under a known id is skipped",
        SETTINGS,
        'return NamedMessage(key, digest((b"payload", delivery.payload)))',
        "return NamedMessage(key)",
    ),
    Fault(
        "two handlers share their records",
        SETTINGS,
        "        key = Key(inbox.tenant, inbox.handler, found)\n",
        '        key = Key(inbox.tenant, "handler", found)\n',
    ),
    Fault(
        "a poison message never ends",
        CONSUMER,
        "if attempt == limits.attempts_max:",
        "if attempt > limits.attempts_max:",
    ),
    Fault("a copy in a batch is tried again", CONSUMER, "        elif message in seen:\n", "        elif False:\n"),
    Fault(
        "a store that is away is asked for every message of a batch",
        CONSUMER,
        "            away = verdict if verdict.settling is Settling.STOP else None\n",
        "",
    ),
    Fault("failed attempts are not added up", SQLITE, "THEN 1 ELSE count + 1 END", "THEN 1 ELSE count END"),
]
