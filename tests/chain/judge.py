"""What must be true at the end of a run, and what the control arms must have shown."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from chain.setting import BARE, INBOX, MARK_FIRST

Published = list[tuple[str, Mapping[str, object]]]
"""Message ids and payloads, as they lie in a queue, from the first to the last."""


@dataclass(frozen=True)
class Evidence:
    answered: set[str]
    """Orders that a caller was told of."""
    refusals: list[str]
    orders: Mapping[str, tuple[str, int]]
    """By name: the customer and the number, as committed."""
    ledger: Mapping[str, list[str]]
    """By arm: the name of the order of each row."""
    audit: Published
    direct: Published
    direct_runs: set[str]
    """Runs of the control's handler that committed."""
    waiting: int
    dead: int
    letters: int
    """Messages in the dead-letter queue."""
    has_controls: bool = True
    drops_repeats: bool = False


@dataclass
class Judgement:
    violations: list[str] = field(default_factory=list)
    void: list[str] = field(default_factory=list)
    """Why the run proves nothing: a control arm that shows no harm."""
    shown: dict[str, int] = field(default_factory=dict)


def judge_run(evidence: Evidence) -> Judgement:
    found = Judgement()
    found.violations.extend(_violations(evidence))
    if evidence.has_controls:
        found.shown = _harm(evidence)
        found.void.extend(f"the control shows no harm: {name}" for name, count in found.shown.items() if not count)
    return found


def _violations(seen: Evidence) -> Iterator[str]:
    effects = Counter(seen.ledger.get(INBOX, []))
    yield from _each("a caller got an answer that no order may get", seen.refusals)
    yield from _each("answered, and no order", seen.answered - seen.orders.keys())
    yield from _each("an order that took no effect", seen.orders.keys() - effects.keys())
    yield from _each("an effect of no order", effects.keys() - seen.orders.keys())
    yield from _each("more than one effect", (name for name, count in effects.items() if count > 1))
    if seen.waiting or seen.dead or seen.letters:
        yield f"messages are left: {seen.waiting} waiting, {seen.dead} dead, {seen.letters} dead letters"
    ids: defaultdict[str, set[str]] = defaultdict(set)
    times: Counter[str] = Counter()
    for message, payload in seen.audit:
        ids[str(payload["name"])].add(message)
        times[message] += 1
    yield from _each("published under several ids", (name for name, known in ids.items() if len(known) > 1))
    yield from _each("two orders share an id", _shared(ids))
    yield from _each("published and not committed", ids.keys() - seen.orders.keys())
    yield from _each("committed and not published", seen.orders.keys() - ids.keys())
    if not seen.drops_repeats:
        yield from _each("published only once, where each is published twice", (m for m, n in times.items() if n < 2))
    yield from _each("out of order", _disordered(seen.audit))


def _shared(ids: Mapping[str, set[str]]) -> Iterator[str]:
    owners = Counter(message for known in ids.values() for message in known)
    return (message for message, count in owners.items() if count > 1)


def _disordered(audit: Published) -> Iterator[str]:
    """Messages that came for the first time after a later one of their customer."""
    last: dict[str, int] = defaultdict(int)
    seen: set[str] = set()
    for message, payload in audit:
        if message in seen:
            continue
        seen.add(message)
        customer, number = str(payload["customer"]), int(str(payload["number"]))
        if number < last[customer]:
            yield f"{customer}: {number} after {last[customer]}"
        last[customer] = max(last[customer], number)


def _harm(seen: Evidence) -> dict[str, int]:
    marked, bare = (Counter(seen.ledger.get(arm, [])) for arm in (MARK_FIRST, BARE))
    runs = Counter(str(payload["name"]) for _, payload in seen.direct)
    return {
        "mark-first: orders lost": len(seen.orders.keys() - marked.keys()),
        "no inbox: effects doubled": sum(count > 1 for count in bare.values()),
        "publish, then commit: published and never committed, or doubled": sum(
            str(payload["run"]) not in seen.direct_runs for _, payload in seen.direct
        )
        + sum(count > 1 for count in runs.values()),
    }


def _each(what: str, found: Iterable[str]) -> Iterator[str]:
    listed = sorted(found)
    if listed:
        yield f"{what}: {len(listed)}, for instance {json.dumps(listed[:3])}"
