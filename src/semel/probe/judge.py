"""Judges what was seen. A black box shows only its answers; where they cannot tell, the verdict is a question mark."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from semel.probe.bodies import Difference
from semel.probe.probes import LONG_KEY, Observations, Seen
from semel.probe.wire import ProbeReply

COUNT = "Count effects with --effects, a URL or command that gives their number."
KEPT_HEADERS = ("content-type", "location")
WAIT_STATUSES = frozenset({202, 409, 423, 425, 429})
"""What a repeat may be told while the first one runs."""


class Mark(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    name: str
    mark: Mark
    seen: str
    why: str
    advice: str = ""


def judge(observed: Observations) -> list[ProbeVerdict]:
    return [
        _repeat(observed),
        _parallel(observed),
        _other_body(observed),
        _stranger(observed),
        _unkeyed(observed),
        _empty_key(observed),
        _long_key(observed),
    ]


def _repeat(observed: Observations) -> ProbeVerdict:
    first, repeat = observed.first.reply, observed.repeat.reply
    mark, why, advice = _same_answer(observed, first, repeat, observed.repeat.effects)
    if observed.first.effects == 0:
        mark, why = Mark.UNCLEAR, "the first request took no effect that --effects can see"
        advice = "Give --effects something that counts this operation."
    return ProbeVerdict(
        "the same request twice", mark, f"{first}, {repeat}{_effects(observed.repeat, observed.first)}", why, advice
    )


def _same_answer(
    observed: Observations, first: ProbeReply, again: ProbeReply, ran: int | None
) -> tuple[Mark, str, str]:
    """What the answer to a repeat says, and the effects if they were counted."""
    protect = "Keep the key and the answer, and give the answer again instead of running the work."
    difference = Difference(first.body, again.body)
    if ran:
        alike = (
            ", although the answers are alike: the answer is cached, the work is not protected"
            if again.same_as(first)
            else ""
        )
        return Mark.WRONG, f"the work ran again{alike}", "Claim the key before the work runs, not after it."
    if again.broken:
        return Mark.WRONG, f"the repeat failed ({again})", protect
    if not again.ok:
        return Mark.WRONG, f"the repeat was refused ({again}) although the first one is done", protect
    if not again.same_as(first):
        if difference.only_bytes and again.status == first.status:
            return (
                Mark.UNCLEAR,
                "the answer has the same content, but not byte for byte",
                "Store bytes, not values: signatures break.",
            )
        if ran is None and difference.identifies and not again.marked:
            return Mark.WRONG, f"the work ran twice: the answers name different things ({difference})", protect
        where = f" ({difference})" if str(difference) else ""
        return Mark.WRONG, f"the repeat got another answer{where}", protect
    lost = [name for name in KEPT_HEADERS if first.header(name) != again.header(name)]
    if lost:
        return Mark.WRONG, f"the repeat has another {', '.join(lost)} header", "Store the headers with the answer."
    if ran == 0 or again.marked:
        return (
            Mark.RIGHT,
            "the repeat got the first answer" + (", and nothing ran again" if ran == 0 else ", marked as a replay"),
            "",
        )
    if observed.settled.reply.ok and not observed.settled.reply.same_as(first):
        return Mark.RIGHT, "the repeat got the first answer; another key gets another one", ""
    return (
        Mark.UNCLEAR,
        "the answers are alike, but so are those of other keys: nothing shows whether it ran again",
        COUNT,
    )


def _parallel(observed: Observations) -> ProbeVerdict:
    name = f"{len(observed.parallel.replies)} times at once"
    replies, ran = observed.parallel.replies, observed.parallel.effects
    seen = _summary(replies) + _effects(observed.parallel)
    fix = "Claim the key with one atomic step (a unique insert) before the work runs."
    done = [reply for reply in replies if reply.ok and reply.status != 202]
    answers = {(reply.status, reply.body) for reply in done}
    if ran is not None and ran > 1:
        return ProbeVerdict(name, Mark.WRONG, seen, f"the work ran {ran} times", fix)
    if len(answers) > 1:
        return ProbeVerdict(
            name, Mark.WRONG, seen, f"the work ran {len(answers)} times: so many different answers", fix
        )
    if strange := [reply for reply in replies if not reply.ok and reply.status not in WAIT_STATUSES]:
        advice = "Answer a repeat of running work with 409 and Retry-After, or let it wait."
        return ProbeVerdict(name, Mark.WRONG, seen, f"{len(strange)} of them failed ({strange[0]})", advice)
    settled = observed.settled.reply
    if not settled.ok or (done and not settled.same_as(done[0])):
        return ProbeVerdict(name, Mark.WRONG, seen, f"afterwards the key does not give the answer ({settled})", fix)
    if ran is None and len(done) > 1 and not (any(reply.marked for reply in replies) or _tells(observed)):
        return ProbeVerdict(name, Mark.UNCLEAR, seen, "all answers are alike, but so are those of other keys", COUNT)
    advice = ""
    if any(reply.status == 409 and reply.header("retry-after") is None for reply in replies):
        advice = "Send Retry-After with 409, so that clients know when to come back."
    return ProbeVerdict(
        name, Mark.RIGHT, seen, "one of them ran; the others were told to wait or got its answer", advice
    )


def _tells(observed: Observations) -> bool:
    """Whether an answer shows which execution it is from."""
    return observed.settled.reply.ok and not observed.settled.reply.same_as(observed.first.reply)


def _other_body(observed: Observations) -> ProbeVerdict:
    name = "another body, the same key"
    reply, control = observed.other_body.reply, observed.control.reply
    seen = f"{reply}; under its own key {control}{_effects(observed.other_body)}"
    fix = "Keep a fingerprint of the request with the key, and refuse another one with 422."
    if observed.other_body.effects:
        return ProbeVerdict(name, Mark.WRONG, seen, "the work ran for a second request under a used key", fix)
    if reply.ok:
        if reply.same_as(observed.first.reply) or reply.marked:
            return ProbeVerdict(
                name, Mark.WRONG, seen, "a different request was answered with the first one's answer", fix
            )
        return ProbeVerdict(name, Mark.WRONG, seen, "a different request was accepted under a used key", fix)
    if reply.broken:
        return ProbeVerdict(name, Mark.WRONG, seen, f"the service failed ({reply})", fix)
    if not control.ok:
        advice = "Give another valid body with --other-data."
        return ProbeVerdict(
            name, Mark.UNCLEAR, seen, "the changed body is refused under any key, so this says nothing", advice
        )
    return ProbeVerdict(name, Mark.RIGHT, seen, "a different request under a used key is refused")


def _stranger(observed: Observations) -> ProbeVerdict:
    name = "another identity, the same key"
    if observed.stranger is None:
        advice = "Send credentials with -H, and those of another caller with --identity 'Authorization: Bearer …'."
        return ProbeVerdict(name, Mark.UNCLEAR, "not tried", "the request does not identify its caller", advice)
    reply, first = observed.stranger.reply, observed.first.reply
    seen = f"{reply}{_effects(observed.stranger)}"
    fix = "Make the caller's account a part of the key, and look keys up after authorisation only."
    if reply.ok and (reply.marked or (reply.same_as(first) and (_tells(observed) or observed.stranger.effects == 0))):
        return ProbeVerdict(name, Mark.WRONG, seen, "another caller got the first caller's answer", fix)
    if reply.ok and reply.same_as(first) and observed.stranger.effects is None:
        return ProbeVerdict(name, Mark.UNCLEAR, seen, "the same answer, but every caller gets that one", COUNT)
    if reply.broken:
        return ProbeVerdict(name, Mark.WRONG, seen, f"the service failed ({reply})", fix)
    if reply.status in (401, 403):
        if observed.stranger_made_up:
            return ProbeVerdict(name, Mark.RIGHT, seen, "made-up credentials get no stored answer")
        advice = "Give credentials with --identity that the service accepts."
        return ProbeVerdict(
            name, Mark.UNCLEAR, seen, "the other identity is not authorised, so this says little", advice
        )
    if reply.ok:
        return ProbeVerdict(name, Mark.RIGHT, seen, "another caller does not get the first caller's answer")
    return ProbeVerdict(
        name, Mark.UNCLEAR, seen, "nothing leaks, but callers share their keys: one can block another's", fix
    )


def _unkeyed(observed: Observations) -> ProbeVerdict:
    name, replies, ran = "twice without a key", observed.unkeyed.replies, observed.unkeyed.effects
    seen = f"{', '.join(map(str, replies))}{_effects(observed.unkeyed)}"
    if broken := [reply for reply in replies if reply.broken]:
        advice = "Answer 400 and say which header is missing."
        return ProbeVerdict(name, Mark.WRONG, seen, f"the service failed ({broken[0]})", advice)
    if all(reply.refused for reply in replies) and not ran:
        return ProbeVerdict(name, Mark.RIGHT, seen, "the key is required")
    stored = any(reply.marked for reply in replies)
    if stored or (ran is not None and ran < len(replies)) or (_tells(observed) and replies[0].same_as(replies[-1])):
        why = "one of them got a stored answer: two operations that look alike become one"
        return ProbeVerdict(name, Mark.WRONG, seen, why, "Only a key says that two requests are one operation.")
    why = "keys are optional here: both ran, unprotected"
    return ProbeVerdict(name, Mark.RIGHT, seen, why, "Require the key where it matters.")


def _empty_key(observed: Observations) -> ProbeVerdict:
    name, reply = "an empty key", observed.empty_key.reply
    seen = f"{reply}{_effects(observed.empty_key)}"
    if reply.refused and not observed.empty_key.effects:
        return ProbeVerdict(name, Mark.RIGHT, seen, "a malformed key is refused")
    why = f"the service failed ({reply})" if reply.broken else "it ran, and the caller believes that it is protected"
    return ProbeVerdict(name, Mark.WRONG, seen, why, "Refuse a key that is no key with 400.")


def _long_key(observed: Observations) -> ProbeVerdict:
    name, reply = f"a key of {LONG_KEY} characters", observed.long_key.reply
    seen = f"{reply}{_effects(observed.long_key)}"
    if reply.refused and not observed.long_key.effects:
        return ProbeVerdict(name, Mark.RIGHT, seen, "a key over the limit is refused")
    if reply.broken:
        return ProbeVerdict(
            name, Mark.WRONG, seen, f"the service failed ({reply})", "Refuse keys over a limit with 400."
        )
    advice = "Refuse keys over a limit (255 is usual) with 400: a store that cuts them makes two keys one."
    return ProbeVerdict(name, Mark.UNCLEAR, seen, "keys of any length are taken", advice)


def _summary(replies: Sequence[ProbeReply]) -> str:
    return ", ".join(f"{count} × {what}" for what, count in Counter(map(str, replies)).most_common())


def _effects(*seen: Seen) -> str:
    counted = [each.effects for each in seen if each.effects is not None]
    if not counted:
        return ""
    total = sum(counted)
    return f"; {total} effect{'' if total == 1 else 's'}"
