"""kill -9 of a consumer before and after each statement, its handler and its COMMIT; then it is delivered again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from inbox.shop import handlings
from inbox.victims import CHOSEN, CONTROLS, consume, consumer, deliveries
from semel.inbox import Handling, Settling
from transaction.modes import MODES, ledger
from transaction.test_transaction_kills import settled_ledger
from transaction.victims import Points

TESTS = Path(__file__).parents[1]
KILLS_MIN = 100
ALIVE = Points(None)


def test_no_message_is_lost_or_doubled_wherever_its_consumer_was_killed(urls: Mapping[str, str]) -> None:
    """The controls show that the kills hit: they lose and double messages in the same run."""
    command = [sys.executable, "-m", "inbox.victims", urls["postgres"], urls["sqlite"]]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    told = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=300)
    *killed, last = told.stdout.splitlines()
    assert last == "done", told.stderr
    by_name = {mode.name: mode for mode in MODES}
    before = {database: settled_ledger(url) for database, url in urls.items()}
    names: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    handled = Counter[Handling]()
    for line in killed:
        _, arm, mode_name, name = line.split()
        mode = by_name[mode_name]
        url = urls[mode.database]
        if arm in CONTROLS:
            consume(mode, url, arm, name, ALIVE)
        else:
            found = consumer(mode, url, ALIVE).handle_batch(deliveries(arm, name))
            verdicts = asyncio.run(found) if mode.is_async else found
            assert {verdict.settling for verdict in verdicts} == {Settling.ACKNOWLEDGE}
            handled.update(handlings(verdicts))
            committed = [before[mode.database][each.payload.decode()] for each in deliveries(arm, name)]
            expected = [Handling.DUPLICATE if each else Handling.HANDLED for each in committed]
            assert handlings(verdicts) == expected, "the record and the effect are one"
        names[arm] += [(mode.database, each.payload.decode()) for each in deliveries(arm, name)]
    took = {database: ledger(url) for database, url in urls.items()}
    effects = {arm: [took[database][name] for database, name in found] for arm, found in names.items()}
    for arm in names.keys() - set(CONTROLS):
        assert set(effects[arm]) == {1}, arm
    assert 0 in effects["mark-first"], "mark-first loses messages"
    assert 2 in effects["no-inbox"], "without an inbox, messages are doubled"
    assert sum(line.split()[1] not in CONTROLS for line in killed) >= KILLS_MIN
    assert {line.split()[2] for line in killed} == set(CHOSEN)
    assert handled[Handling.DUPLICATE] >= 10, "some were killed after their COMMIT"
