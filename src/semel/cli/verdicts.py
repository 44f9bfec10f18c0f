"""Verdicts on unknown outcomes, as JSON lines: each names a record as lists print it, and says what happened.

The whole file is checked before anything is changed, so a mistake in its last line does no harm.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from semel.cli.actions import encode_result
from semel.cli.answers import encode_value
from semel.cli.output import digest
from semel.cli.selection import DIGEST_SIZE
from semel.codecs import responses, values
from semel.codecs.terminal import visible
from semel.core.records import Result

LINES_MAX = 100_000
LINE_MAX = 16 * 1024 * 1024
PRINTED = ("name", "state", "created", "lease_until", "completed", "expires")  # by lists, for people
ANSWER = "answer"
NOTHING_DONE = "nothing-done"
MEMBERS = ("digest", "tenant", "scope", "attempt", "owner", "verdict", ANSWER, *PRINTED)
BODIES = ("body", "body_base64", "json")
ANSWER_MEMBERS = ("status", "headers", "format", "failed", *BODIES)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class SeenAttempt:
    """The attempt of a record that the operator has seen."""

    tenant: str
    scope: str
    digest: str
    owner: str
    attempt: int

    @property
    def record(self) -> tuple[str, str, str]:
        return self.tenant, self.scope, self.digest


@dataclass(frozen=True, slots=True)
class LineVerdict:
    """What one line says: the result that repeats will get, or None because nothing was done."""

    line: int
    place: SeenAttempt
    result: Result | None


@dataclass(frozen=True, slots=True)
class InvalidLine:
    line: int
    reason: str


def read_verdicts(lines: Iterable[bytes]) -> Iterator[LineVerdict | InvalidLine]:
    """The verdict of each line that is not blank, or why the line is invalid."""
    seen: dict[tuple[str, str, str], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if number > LINES_MAX:
                raise ValueError(f"a file has at most {LINES_MAX} lines: split it")
            verdict = _verdict(number, line)
            if before := seen.get(verdict.place.record):
                raise ValueError(f"line {before} is about the same record")
        except (ValueError, click.UsageError) as error:
            yield InvalidLine(number, error.message if isinstance(error, click.UsageError) else str(error))
            if number > LINES_MAX:
                return
        else:
            seen[verdict.place.record] = number
            yield verdict


def _verdict(number: int, line: bytes) -> LineVerdict:
    if len(line) > LINE_MAX:
        raise ValueError(f"it is longer than {LINE_MAX} bytes")
    try:
        found = json.loads(line, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object, as semel stuck --json-lines prints them")
    _refuse_unknown(found, MEMBERS, "")
    place = SeenAttempt(
        _text(found, "tenant"), _text(found, "scope"), _text(found, "digest"), _text(found, "owner"), _attempt(found)
    )
    if not re.fullmatch(rf"[0-9a-f]{{{DIGEST_SIZE}}}", place.digest):
        raise ValueError(f"digest is not one that lists print: {DIGEST_SIZE} characters of 0-9a-f")
    name = found.get("name")
    if name is not None and (not isinstance(name, str) or digest(name) != place.digest):
        raise ValueError("name and digest are not of the same key")
    match found.get("verdict"):
        case "nothing-done":
            if found.get(ANSWER) is not None:
                raise ValueError(f"verdict is {NOTHING_DONE!r}, and there is an answer: it is one or the other")
            return LineVerdict(number, place, None)
        case "answer":
            return LineVerdict(number, place, _answer(found.get(ANSWER)))
        case None:
            raise ValueError(f'it has no verdict: add "verdict": "{NOTHING_DONE}", or "{ANSWER}" and the answer')
        case other:
            raise ValueError(f"verdict is {other!r}, and must be {NOTHING_DONE!r} or {ANSWER!r}")


def _answer(given: object) -> Result:
    if not isinstance(given, dict):
        raise ValueError('answer must be an object, like {"status": 201, "json": {"paid": 10}}')
    _refuse_unknown(given, ANSWER_MEMBERS, "answer.")
    bodies = [name for name in BODIES if name in given]
    if len(bodies) != 1:
        raise ValueError(f"answer must have one of {', '.join(BODIES)}")
    status, failed = given.get("status", 200), given.get("failed", False)
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise ValueError(f"answer.status is {status!r}, and must be a number from 200 to 599")
    if not isinstance(failed, bool):
        raise ValueError(f"answer.failed is {failed!r}, and must be true or false")
    format = _text(given, "format") if "format" in given else responses.FORMAT
    if format != responses.FORMAT and ("status" in given or "headers" in given):
        raise ValueError("answer.status and answer.headers are for HTTP, and answer.format is another")
    if format == responses.FORMAT and "failed" in given:
        raise ValueError("answer.failed is for another answer.format: of HTTP answers the status says it")
    if bodies == ["json"] and format == values.FORMAT:
        return encode_value(_body("json", given["json"]))
    headers = _headers(given.get("headers", []))
    if (
        bodies == ["json"]
        and format == responses.FORMAT
        and not any(h.lower().startswith("content-type:") for h in headers)
    ):
        headers.append("content-type:application/json")
    return encode_result(_body(bodies[0], given[bodies[0]]), status, headers, format, failed)


def _body(kind: str, value: object) -> bytes:
    if kind == "json":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if not isinstance(value, str):
        raise ValueError(f"answer.{kind} must be text")
    try:
        return value.encode() if kind == "body" else b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(f"answer.{kind}: {error}") from error


def _headers(given: object) -> list[str]:
    """As pairs, the way `semel keys show --json` prints them."""
    found: list[str] = []
    for pair in given if isinstance(given, list) else [given]:
        match pair:
            case [str(name), str(value)] if HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable():
                found.append(f"{name}:{value}")
            case _:
                raise ValueError('answer.headers must be a list of pairs, like [["content-type", "text/plain"]]')
    return found


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is missing, or is not text: take the line as semel stuck --json-lines prints it")
    return value


def _attempt(found: Mapping[str, Any]) -> int:
    value = found.get("attempt")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("attempt is missing, or is no number: take the line as semel stuck --json-lines prints it")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it is not JSON: {name} is no number there")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same member twice")
    return found


def _refuse_unknown(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {where}{close[0]}?" if close else f"there are {', '.join(known)}"
            raise ValueError(f"{where}{visible(name)} is not known: {hint}")
