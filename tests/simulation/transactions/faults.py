"""Faults of exactly-once over HTTP, each of which the simulation must notice."""

from __future__ import annotations

from mutants.fault import Fault

REQUESTS, HTTP = "transaction/requests.py", "transaction/http.py"
QUERIES = "stores/postgres/transaction_queries.py"
TRANSACTION, ADMISSION, MONITORS, GATE, TABLES = (
    "asgi/transaction.py",
    "http/admission.py",
    "http/monitors.py",
    "http/gate.py",
    "core/tables.py",
)

FAULTS = [
    Fault(
        "an open request is rolled back by the next claim after its lease",
        REQUESTS,
        "        first = self._twins.keys.first(claim.key)\n",
        '        late = vars(self._twins).setdefault("late", {})\n'
        "        for other in [each for each, until_ms in late.items() if until_ms <= wall_ms()]:\n"
        "            del late[other]\n"
        "            yield from other.ending()\n"
        "        late[self] = wall_ms() + claim.lease_ms\n"
        "        first = self._twins.keys.first(claim.key)\n",
    ),
    Fault(
        "a request that is cut off does not end its transaction",
        TRANSACTION,
        "            try:\n                await self._transaction.end()\n            finally:\n    ",
        "            if True:\n    ",
    ),
    Fault(
        "an answer is settled when it is too large to keep",
        TRANSACTION,
        '            if not message.get("more_body", False):\n                await self._complete_answer()',
        '            if not message.get("more_body", False) or self._held.size > self._keyed.policy.result_max:\n'
        "                await self._complete_answer()",
    ),
    Fault(
        "the monitor only reads",
        MONITORS,
        'unseen = monitored.fingerprint if self._in_transactions else ""',
        'unseen = ""',
    ),
    Fault("a twin waits in the database", REQUESTS, "NO_WAIT_MS = 1\n", "NO_WAIT_MS = 10_000\n"),
    Fault(
        "a claim that was granted after waiting has no lock",
        QUERIES,
        "locked AS MATERIALIZED (SELECT pg_advisory_xact_lock($9::bigint))",
        "locked AS MATERIALIZED (SELECT $9::bigint)",
    ),
    Fault(
        "a repeat keeps its connection while it is answered",
        REQUESTS,
        "        if isinstance(reply, Occupied):\n            yield from self._roll_back()\n            return reply\n",
        "        if isinstance(reply, Occupied):\n            return reply\n",
    ),
    Fault(
        "the answer is sent before the commit",
        TRANSACTION,
        "        settlement = await self._settle(done)\n        response",
        "        await self._respond(done.response, (done.response.body,))\n"
        "        settlement = await self._settle(done)\n        response",
    ),
    Fault(
        "a failed commit is answered with success",
        REQUESTS,
        "        return (yield from self._was_stored(call.lease, error))",
        "        return True",
    ),
    Fault(
        "another request's record counts as the own one",
        REQUESTS,
        "        return record.owner == lease.owner and not record.in_progress()",
        "        return True",
    ),
    Fault(
        "a lost connection is stored as a failure",
        ADMISSION,
        "        if why := self._why_rolled_back(error):\n",
        '        if why := "":\n',
    ),
    Fault(
        "the rows are committed without the result",
        REQUESTS,
        "        yield from step(lambda: unit.run(self._engine(unit).complete(call, self._mark)))\n        yield",
        "        yield",
    ),
    Fault(
        "a failure keeps what it wrote",
        REQUESTS,
        "            yield from self._roll_back()\n            return (yield from self._remember(call))\n",
        "            yield from self._commit(call)\n            return True\n",
    ),
    Fault(
        "work that did nothing is committed",
        HTTP,
        "        await self.end()\n        return True\n",
        "        if self._unit is not None:\n            await self._unit.commit()\n"
        "        await self.end()\n        return True\n",
    ),
    Fault(
        "a request that has ended still stands in the table of open keys",
        REQUESTS,
        "            if self._claim is not None:\n                self._twins.leave(self._claim)\n",
        "            pass\n",
    ),
    Fault(
        "a request is accepted before its key is claimed",
        TRANSACTION,
        "        await asyncio.wait({work, self._began}, return_when=asyncio.FIRST_COMPLETED)\n",
        "",
    ),
    Fault(
        "an application that ignores what its flush raised is not answered for",
        TRANSACTION,
        "                self._refusal = error\n                await self._finish_raised(error, False)\n",
        "                self._refusal = error\n",
    ),
    Fault(
        "the answer that holds is sent with the body of a failed run",
        TRANSACTION,
        "is_held = not isinstance(settlement, Superseded) and not response.body",
        "is_held = not response.body",
    ),
    Fault(
        "a request that is cancelled again rolls back under its handler",
        TRANSACTION,
        "        except asyncio.CancelledError as again:\n            cancelled = again\n",
        "        except asyncio.CancelledError:\n            raise\n",
    ),
    Fault("a mismatch replays", TABLES, "(Ruling.REPLAY, Ruling.MISMATCH)", "(Ruling.REPLAY, Ruling.REPLAY)"),
    Fault("one key for all tenants", GATE, "key = Key(tenant, scope, ", 'key = Key("", scope, '),
]
