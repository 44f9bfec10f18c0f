"""Faults of the protocol, each of which the simulation must notice. They are seeded into a module as it is imported."""

from __future__ import annotations

from mutants.fault import Fault

MODEL, RECORDS, TABLES, PROTOCOL = "core/model.py", "core/records.py", "core/tables.py", "core/protocol.py"
KEEPER, HOST, GATE, HTTP = "runtime/keeper.py", "runtime/host.py", "http/gate.py", "core/http.py"
BATCH, MEMORY = "stores/batching.py", "stores/memory.py"
ADMISSION, ANSWERS, EXECUTION, POLICY = "http/admission.py", "http/answers.py", "asgi/execution.py", "core/policy.py"

FAULTS = [
    Fault(
        "unfenced complete",
        MODEL,
        "if old is None or old.owner != call.lease.owner:\n        return old, False\n    if not",
        "if old is None:\n        return old, False\n    if not",
    ),
    Fault(
        "unfenced release",
        MODEL,
        "not _holds(old, call.lease.owner):\n        return old, False",
        "not old.in_progress():\n        return old, False",
    ),
    Fault(
        "unfenced renew",
        MODEL,
        "not _holds(old, call.lease.owner):\n"
        "        return old, None\n"
        "    new = replace(old, lease_until_ms=now_ms + call.lease_ms)\n"
        "    return new, new.lease",
        "not old.in_progress():\n"
        "        return old, None\n"
        "    return replace(old, lease_until_ms=now_ms + call.lease_ms), call.lease",
    ),
    Fault("the attempt never grows", MODEL, "attempt=old.attempt + 1, ", "attempt=old.attempt, "),
    Fault(
        "a take-over does not restart the lease",
        MODEL,
        "attempt=old.attempt + 1, lease_until_ms=lease_until_ms, ",
        "attempt=old.attempt + 1, ",
    ),
    Fault(
        "a repeated claim is a conflict with oneself",
        MODEL,
        "        and _holds(old, call.owner)\n",
        "        and False\n",
    ),
    Fault(
        "a release forgets the attempts before it",
        MODEL,
        "    if old.attempt == 1:\n        return None, True\n",
        "    return None, True\n",
    ),
    Fault(
        "a completion does not restart the retention",
        MODEL,
        "        expires_ms=now_ms + retention_ms,\n",
        "        expires_ms=record.expires_ms,\n",
    ),
    Fault(
        "an unknown outcome is forgotten as soon as a result",
        POLICY,
        "max(self.unknown_retention_ms, self.retention_ms + self.refuse_ms)",
        "self.retention_ms + self.refuse_ms",
    ),
    Fault(
        "a lapsed holder may not complete",
        MODEL,
        "if old is None or old.owner != call.lease.owner:\n        return old, False\n    if not",
        "if old is None or old.owner != call.lease.owner or old.lapsed(now_ms):\n        return old, False\n    if not",
    ),
    Fault(
        "a take-over with another fingerprint",
        TABLES,
        "(Ruling.TAKE_OVER, Ruling.MISMATCH)",
        "(Ruling.TAKE_OVER, Ruling.TAKE_OVER)",
    ),
    Fault(
        "a live lease is taken over",
        TABLES,
        "(Ruling.IN_FLIGHT, Ruling.MISMATCH)",
        "(Ruling.TAKE_OVER, Ruling.MISMATCH)",
    ),
    Fault(
        "an unknown outcome is taken over",
        TABLES,
        "(Ruling.UNKNOWN, Ruling.MISMATCH)",
        "(Ruling.TAKE_OVER, Ruling.MISMATCH)",
    ),
    Fault("a result is run again", TABLES, "(Ruling.REPLAY, Ruling.MISMATCH)", "(Ruling.GRANT, Ruling.MISMATCH)"),
    Fault("a mismatch replays", TABLES, "(Ruling.REPLAY, Ruling.MISMATCH)", "(Ruling.REPLAY, Ruling.REPLAY)"),
    Fault(
        "a mismatch in flight is told to wait",
        TABLES,
        "(Ruling.IN_FLIGHT, Ruling.MISMATCH)",
        "(Ruling.IN_FLIGHT, Ruling.IN_FLIGHT)",
    ),
    Fault(
        "interrupted work gives its key back",
        TABLES,
        "Ending.INTERRUPTED: Disposal.LEAVE",
        "Ending.INTERRUPTED: Disposal.RELEASE",
    ),
    Fault(
        "work that raised gives its key back",
        TABLES,
        "Ending.RAISED: Disposal.COMPLETE",
        "Ending.RAISED: Disposal.RELEASE",
    ),
    Fault(
        "a lapsed lease is always live",
        RECORDS,
        "self.state is State.IN_PROGRESS and now_ms >= self.lease_until_ms",
        "False",
    ),
    Fault(
        "a live lease expires", RECORDS, "now_ms >= self.lease_until_ms\n\n    def answers", "True\n\n    def answers"
    ),
    Fault(
        "release on ambiguity",
        PROTOCOL,
        "        return STORED if (yield from _has_stored(complete.lease)) else NotStored(error)\n",
        "        yield from _insist(Release(complete.lease), budget_ms=ABANDON_MS)\n        return NotStored(error)\n",
    ),
    Fault(
        "a claim that is not there yet counts as given back",
        PROTOCOL,
        "        if doubts and not released:\n",
        "        if False:\n",
    ),
    Fault(
        "a wrong setting ends the tries to store a result",
        PROTOCOL,
        "    return not isinstance(failure, RecordUnreadable)",
        "    return isinstance(failure, StoreUnavailable)",
    ),
    Fault(
        "what is still in flight counts as ended",
        BATCH,
        "        if self._flight:\n            landing",
        "        if False:\n            landing",
    ),
    Fault(
        "an assumed claim",
        PROTOCOL,
        "            decision = Undecided(error)\n        finally:\n",
        "            decision = Run(Lease(key, owner, 1, 1))\n        finally:\n",
    ),
    Fault(
        "an unreadable record is treated as absent",
        PROTOCOL,
        "            decision = Unreadable(error)\n        except StoreError",
        "            decision = Run(Lease(key, owner, 1, 1))\n        except StoreError",
    ),
    Fault(
        "the superseded answer for themselves",
        PROTOCOL,
        "        if ours:\n            return STORED",
        "        return STORED",
    ),
    Fault(
        "the superseded believe that they are stored",
        HOST,
        "            if first is True:\n",
        "            if isinstance(first, bool):\n",
        times=2,
    ),
    Fault(
        "another request's result at first sight",
        PROTOCOL,
        "same=record.fingerprint == fingerprint)",
        "same=True)",
    ),
    Fault(
        "what was not stored is said to be stored",
        PROTOCOL,
        "        return STORED if (yield from _has_stored(complete.lease)) else NotStored(error)\n",
        "        return STORED\n",
    ),
    Fault(
        "a completion that got no answer counts as stored",
        HOST,
        "                first = await ask(complete)\n            except StoreError as error:\n"
        "                first = error\n",
        "                first = await ask(complete)\n            except StoreError:\n                first = True\n",
    ),
    Fault(
        "renewal is not stopped",
        KEEPER,
        "        kept.stopped = True\n        kept.lane.pop(kept, None)\n",
        "        pass\n",
    ),
    Fault(
        "nobody renews",
        KEEPER,
        "        for kept in self._wheel.take_due(max(self._loop.time(), self._timer_s)):",
        "        for kept in self._wheel.take_due(max(self._loop.time(), self._timer_s))[:0]:",
    ),
    Fault(
        "a batch is answered in the wrong order",
        BATCH,
        "zip(batch, replies, strict=True)",
        "zip(batch, replies[::-1], strict=True)",
    ),
    Fault(
        "a failed batch counts as granted",
        BATCH,
        "            failure = error\n        else:",
        "            failure = error\n"
        "            from semel.core import effects, records\n"
        "            for call, future, _ in batch:\n"
        "                granted = isinstance(call, effects.Claim)\n"
        "                lease = records.Lease(call.key, call.owner, 1, 1) if granted else None\n"
        "                self._answer(call, future, records.Acquired(lease) if granted else error)\n"
        "            return\n"
        "        else:",
    ),
    Fault(
        "purge deletes what is unknown",
        MODEL,
        "    if old.past_retention(now_ms):\n        return None, True\n    if old.result",
        "    if old.past_retention(now_ms) or old.lapsed(now_ms):\n        return None, True\n    if old.result",
    ),
    Fault(
        "purge deletes results",
        MODEL,
        "    if old.past_retention(now_ms):\n        return None, True\n    if old.result",
        "    if old.past_retention(now_ms) or old.result is not None:\n        return None, True\n    if old.result",
    ),
    Fault(
        "a result is acknowledged before it is kept",
        MEMORY,
        "                self._put(key, new)\n                if old",
        "                if isinstance(call, Complete):\n"
        "                    return reply\n"
        "                self._put(key, new)\n                if old",
    ),
    Fault("replay across tenants", GATE, "key = Key(tenant, scope, ", 'key = Key("", scope, '),
    Fault(
        "one key for all endpoints",
        GATE,
        '        scope = f"{request.method} {_host_in(policy, request)}{request.path}"\n        if (',
        '        scope = ""\n        if (',
    ),
    Fault(
        "the fingerprint ignores the body",
        GATE,
        "fingerprint = raw(request, ",
        'fingerprint = raw(RequestParts(request.method, request.path, request.query, request.headers, b""), ',
    ),
    Fault(
        "an answer that was not stored has no mark",
        ANSWERS,
        "return ended.response.plus(http.NOT_STORED)",
        "return ended.response",
    ),
    Fault(
        "the superseded get their own answer",
        ANSWERS,
        "            case Superseded(decision):\n                return self.answer(decision)",
        "            case Superseded():\n                return ended.response",
    ),
    Fault(
        "a failure is another one for its first caller",
        ANSWERS,
        "return Ended(Ending.RAISED, responses.encode(response, ok=False), response)",
        'return Ended(Ending.RAISED, responses.encode(response, ok=False), self.problem("internal-error"))',
    ),
    Fault(
        "repeated headers collapse",
        HTTP,
        "return tuple([header for header in headers if header[0].lower() not in DROPPED])",
        "return tuple({each[0].lower(): each for each in headers if each[0].lower() not in DROPPED}.values())",
    ),
    Fault(
        "the answer leaves before its record",
        EXECUTION,
        "            settlement = await self._settle(done)\n",
        "            await self._respond(done.response)\n            settlement = await self._settle(done)\n",
    ),
    Fault(
        "interrupted work is stored as a failure",
        EXECUTION,
        "            await self._leave(Ending.INTERRUPTED)\n",
        "            await self._finish(keyed.answers.raised())\n",
    ),
    Fault(
        "fail closed runs", ADMISSION, 'case Undecided() if self.policy.on_store_error == "open":', "case Undecided():"
    ),
    Fault(
        "fail open has no mark",
        EXECUTION,
        '[*without_directives(message.get("headers", ())), http.NOT_STORED]',
        'without_directives(message.get("headers", ()))',
    ),
    Fault(
        "a caller who leaves takes the work along",
        EXECUTION,
        "            self._caller_left = True\n            raise",
        "            work.cancel()\n            raise",
    ),
]
