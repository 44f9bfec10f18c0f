"""The judge: what was promised, held against the ledger and against all that clients were told."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blackbox.clients import BODY, Operation, Told
from blackbox.deployment import CONTROL

EXAMPLES_MAX = 10
Effects = Mapping[tuple[str, str], list[tuple[str, str]]]
"""By arm and key: the body and the number of each effect."""


@dataclass(frozen=True)
class Evidence:
    """All that is known after a run. `last` is what a repeat of each operation was told when all was quiet."""

    told: Mapping[Operation, Told]
    last: Mapping[Operation, str]
    last_others: Mapping[Operation, str]
    """The same for another request under the key."""
    effects: Effects
    stuck: int
    """Keys that were still in progress when every lease had to be over."""

    def protected(self) -> Iterator[tuple[Operation, Told, list[tuple[str, str]]]]:
        for operation, told in self.told.items():
            if operation.arm != CONTROL:
                yield operation, told, self.effects.get((operation.arm, operation.key), [])


@dataclass(frozen=True)
class Finding:
    invariant: str
    checked: int
    violations: int
    examples: list[str]


def read_ledger(path: Path) -> Effects:
    effects: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        arm, key, body, effect = line.split()
        effects[arm, key].append((body, effect))
    return effects


def duplicates(effects: Effects, arm: str) -> int:
    """Keys of an arm with more than one effect."""
    return sum(len(found) > 1 for (where, _), found in effects.items() if where == arm)


def findings(evidence: Evidence) -> list[Finding]:
    return [check(evidence) for check in INVARIANTS]


def finding_of(invariant: str, verdicts: list[tuple[str, bool]]) -> Finding:
    wrong = [what for what, right in verdicts if not right]
    return Finding(invariant, len(verdicts), len(wrong), wrong[:EXAMPLES_MAX])


def at_most_one_effect(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{arm} {key}: {found}", len(found) == 1) for (arm, key), found in evidence.effects.items() if arm != CONTROL
    ]
    return finding_of("no key has two effects", verdicts)


def a_success_has_an_effect(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{operation}: {reply.body!r}, effects {found}", [effect_of(reply.body)] == [effect for _, effect in found])
        for operation, told, found in evidence.protected()
        for reply in told.successes
    ]
    return finding_of("every success reply has exactly one effect, and names it", verdicts)


def successes_are_alike(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{operation}: {told.successes}", len({reply.lasting for reply in told.successes}) == 1)
        for operation, told, _ in evidence.protected()
        if told.successes
    ]
    return finding_of("all success replies for a key are identical", verdicts)


def the_answer_is_the_callers(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{operation}: {reply.body!r}", json.loads(reply.body)["key"] == operation.key)
        for operation, told, _ in evidence.protected()
        for reply in told.successes
    ]
    return finding_of("no caller gets another key's answer", verdicts)


def nothing_is_stuck(evidence: Evidence) -> Finding:
    verdicts = [(f"{operation}: {said}", said != "409 in-progress") for operation, said in evidence.last.items()]
    verdicts += [("a record is in progress beyond its lease", False)] * evidence.stuck
    return finding_of("no key is in progress beyond its lease", verdicts)


def sent_means_stored(evidence: Evidence) -> Finding:
    """A success that was not marked is replayed for ever after; no key that had one is unknown."""
    verdicts = [
        (f"{operation}: {evidence.last[operation]}", evidence.last[operation] == "201")
        for operation, told, _ in evidence.protected()
        if operation in evidence.last and any(not reply.marked for reply in told.successes)
    ]
    return finding_of("an answer that was sent as stored is replayed", verdicts)


def an_end_is_told(evidence: Evidence) -> Finding:
    ends = ("201", "409 outcome-unknown", "409 in-progress")
    verdicts = [(f"{operation}: {said}", said in ends) for operation, said in evidence.last.items()]
    return finding_of("when all is quiet, every key replays, runs, or is unknown", verdicts)


def other_requests_are_refused(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{operation}: {reply.said}", not reply.success)
        for operation, told, _ in evidence.protected()
        for reply in told.others
    ]
    verdicts += [(f"{operation}: {said}", said == "422 key-reused") for operation, said in evidence.last_others.items()]
    verdicts += [
        (f"{operation}: effect of {body}", body == BODY)
        for operation, _, found in evidence.protected()
        for body, _ in found
    ]
    return finding_of("another request under the same key is refused with 422 and has no effect", verdicts)


def effect_of(body: bytes) -> str:
    effect: str = json.loads(body)["effect"]
    return effect


INVARIANTS: tuple[Callable[[Evidence], Finding], ...] = (
    at_most_one_effect,
    a_success_has_an_effect,
    successes_are_alike,
    the_answer_is_the_callers,
    nothing_is_stuck,
    sent_means_stored,
    an_end_is_told,
    other_requests_are_refused,
)
