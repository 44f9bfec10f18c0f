"""The judge: committed rows, held against all that callers were told and against what handlers noted of themselves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from blackbox.exactly_once.callers import FINAL, LEFT, LOST, OVERDUE, Asked
from blackbox.exactly_once.deployment import Rows
from blackbox.exactly_once.journal import Ran
from blackbox.exactly_once.orders import CONTROL, POSITIONS, Kind, Order
from blackbox.judge import Finding, finding_of

DONE = ("201", "409 result-not-kept")
ENDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.DECLINES: ("402",),
    Kind.FAILS: ("500 internal-error",),
    Kind.LARGE: DONE,
    Kind.TORN: (*DONE, "500 internal-error"),
}
"""How an order may end: "201" unless its handler does something about it."""
RETRYABLE = ("202", "409 in-progress", "503 store-unavailable", "503 not-executed", "504 interrupted")
NO_ANSWER = ("500", LEFT, LOST, OVERDUE)
"""The first is the server's own, for a handler that was cancelled."""
NOT_KNOWN = ("410 key-expired",)
"""What a monitor may say of an operation that was rolled back."""


@dataclass(frozen=True)
class Evidence:
    """All that is known after a run."""

    rows: Rows
    asked: Sequence[Asked]
    polled: Sequence[Asked]
    """What monitors said."""
    runs: Mapping[tuple[str, str], list[Ran]]
    last: Mapping[Order, str] = field(default_factory=dict)
    """What a repeat of each order was told when all was quiet."""
    left_open: Sequence[str] = ()
    """Transactions that were open, and connections that were not back in their pools, when all was quiet."""
    beside_twins: Sequence[tuple[str, bool]] = ()
    """Requests beside many twins of another key that wait: whether they were answered without waiting for those."""
    far_twins: Sequence[tuple[str, bool]] = ()
    """Twins of a long request, on a slow network: whether they waited no longer than they should."""
    late: Sequence[tuple[str, bool]] = ()
    """Requests that outlast the lease: whether they were answered with their own success."""
    after_cuts: Sequence[tuple[str, bool]] = ()
    """Repeats that follow a handler which was cut off: whether they were told that it is over."""
    _told: dict[Order, list[Asked]] = field(init=False, default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for asked in (*self.asked, *self.polled):
            if asked.order.arm != CONTROL:
                self._told[asked.order].append(asked)

    def orders(self) -> Iterator[tuple[Order, list[Asked], list[tuple[str, int]]]]:
        for order, told in self._told.items():
            yield order, told, self.rows.get((order.arm, order.key), [])


def ends_of(order: Order) -> tuple[str, ...]:
    return ENDS.get(order.kind, DONE[:1])


def findings(evidence: Evidence) -> list[Finding]:
    return [check(evidence) for check in INVARIANTS]


def one_run(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{arm} {key}: {found}", len({run for run, _ in found}) == 1)
        for (arm, key), found in evidence.rows.items()
        if arm != CONTROL
    ]
    return finding_of("no key has committed rows of two runs", verdicts)


def rows_are_whole(evidence: Evidence) -> Finding:
    whole = [*range(1, POSITIONS + 1)]
    runs: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for (arm, key), found in evidence.rows.items():
        for run, position in found:
            if arm != CONTROL:
                runs[arm, key, run].append(position)
    verdicts = [(f"{of}: {positions}", sorted(positions) == whole) for of, positions in runs.items()]
    return finding_of("a run is committed as a whole, or not at all", verdicts)


def a_success_is_committed(evidence: Evidence) -> Finding:
    verdicts: list[tuple[str, bool]] = []
    for order, told, found in evidence.orders():
        for asked in told:
            if asked.said == "201" and asked.reply is not None:
                named = json.loads(asked.reply.body)["run"]
                verdicts.append((f"{order}: told {named}, rows {found}", {run for run, _ in found} == {named}))
            elif asked.said == "409 result-not-kept":
                verdicts.append((f"{order}: carried out, rows {found}", bool(found)))
    return finding_of("every success names the one run that is committed", verdicts)


def a_failure_is_not_committed(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{order}: {asked.said}, rows {found}", not found)
        for order, told, found in evidence.orders()
        for asked in told
        if asked.said in FINAL and asked.said not in DONE
    ]
    return finding_of("what is answered as failed has no committed row", verdicts)


def final_answers_are_alike(evidence: Evidence) -> Finding:
    verdicts = []
    for order, told, _ in evidence.orders():
        final = [asked for asked in told if asked.said in FINAL]
        alike = {asked.reply.lasting for asked in final if asked.reply is not None and asked.said != DONE[1]}
        ends = {asked.said in DONE for asked in final}
        verdicts.append((f"{order}: {sorted({asked.said for asked in final})}", len(alike) < 2 and len(ends) < 2))
    return finding_of("all final answers for a key are identical", verdicts)


def the_answer_is_the_callers(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{order}: {asked.reply.body[:80]!r}", json.loads(asked.reply.body)["key"] == order.key)
        for order, told, _ in evidence.orders()
        for asked in told
        if asked.reply is not None and asked.said in ("201", "402")
    ]
    return finding_of("no caller gets another key's answer", verdicts)


def an_answer_fits_its_order(evidence: Evidence) -> Finding:
    """Work that its database rolled back is not answered as failed: nothing was done, and the repeat runs."""
    verdicts = []
    for told, also in ((evidence.asked, ()), (evidence.polled, NOT_KNOWN)):
        for asked in told:
            fits = (*ends_of(asked.order), *RETRYABLE, *NO_ANSWER, *also)
            what = f"{asked.order}: {asked.said} {asked.reply and asked.reply.body[:300]!r}"
            if asked.order.arm != CONTROL:
                verdicts.append((what, asked.said in fits))
    return finding_of("an answer is the order's own end, or says that a repeat runs", verdicts)


def monitors_tell_the_truth(evidence: Evidence) -> Finding:
    """What monitors say while a run writes, and before it is committed.

    A handler may go on for a while after its connection was lost, also in its commit. Its transaction is rolled back
    then, so a run counts for as long as its statements succeed.
    """
    verdicts = []
    for asked in evidence.polled:
        of = (asked.order.arm, asked.order.key)
        committed = {run for run, _ in evidence.rows.get(of, [])}
        runs = [
            ran
            for ran in evidence.runs.get(of, [])
            if ran.begun_s < asked.sent_s and (ran.run in committed or ran.alive_s > asked.ended_s)
        ]
        when = f"{asked.sent_s:.3f} to {asked.ended_s:.3f}"
        verdicts.append(
            (f"{asked.order}: {asked.said} at {when}, runs {runs}", not (asked.said.startswith("410") and runs))
        )
    return finding_of("no monitor says that an operation did not run which runs or is committed", verdicts)


def an_end_is_told(evidence: Evidence) -> Finding:
    verdicts = [(f"{order}: {said}", said in ends_of(order)) for order, said in evidence.last.items()]
    return finding_of("when all is quiet, every order ends as it should", verdicts)


def every_request_is_answered(evidence: Evidence) -> Finding:
    verdicts = [
        (f"{asked.order}: {asked.ended_s - asked.sent_s:.1f} s", asked.said != OVERDUE)
        for _, told, _ in evidence.orders()
        for asked in told
    ]
    return finding_of("no request is left without an answer", verdicts)


def nothing_is_left_open(evidence: Evidence) -> Finding:
    verdicts = [(what, False) for what in evidence.left_open] or [("", True)]
    return finding_of("no transaction is left open, and all connections are back in their pools", verdicts)


def twins_leave_room(evidence: Evidence) -> Finding:
    return finding_of("twins that wait take no connection from other keys", [*evidence.beside_twins])


def waiting_is_bounded(evidence: Evidence) -> Finding:
    return finding_of("a twin waits no longer than `wait`, also on a slow network", [*evidence.far_twins])


def late_is_only_late(evidence: Evidence) -> Finding:
    return finding_of("a request that outlasts the lease succeeds all the same", [*evidence.late])


def a_cut_off_handler_is_over(evidence: Evidence) -> Finding:
    return finding_of("after a handler was cut off its key and its connection are free", [*evidence.after_cuts])


INVARIANTS: tuple[Callable[[Evidence], Finding], ...] = (
    one_run,
    rows_are_whole,
    a_success_is_committed,
    a_failure_is_not_committed,
    final_answers_are_alike,
    the_answer_is_the_callers,
    an_answer_fits_its_order,
    monitors_tell_the_truth,
    an_end_is_told,
    every_request_is_answered,
    nothing_is_left_open,
    twins_leave_room,
    waiting_is_bounded,
    late_is_only_late,
    a_cut_off_handler_is_over,
)
