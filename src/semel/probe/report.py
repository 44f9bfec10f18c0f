"""The verdicts as text for people and as JSON for programs. Neither shows a header's value, a body or a key."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from semel.codecs.terminal import json_text, visible
from semel.probe.judge import Mark, ProbeVerdict
from semel.probe.wire import ProbeRequest

SIGNS = {Mark.RIGHT: "✔", Mark.WRONG: "✘", Mark.UNCLEAR: "?"}
WIDTH_MAX = 110
NOT_COUNTED = (
    "Judged by answers alone: a service that gives the first answer again and still runs the work looks right. "
    "Count effects with --effects."
)


def format_url(url: str) -> str:
    """The URL without a password, and without the values of its query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = "&".join(f"{quote(name)}=…" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def redact(text: str, headers: Sequence[tuple[str, str]]) -> str:
    """The text without the values of these headers of the request, which a service may repeat in its answer."""
    for _, value in headers:
        for secret in (value, value.partition(" ")[2]):  # the whole first, which holds the other
            if len(secret) > 3:
                text = text.replace(secret, "…")
    return text


def as_text(verdicts: Sequence[ProbeVerdict], request: ProbeRequest, *, counted: bool) -> str:
    width = min(WIDTH_MAX, shutil.get_terminal_size((WIDTH_MAX, 24)).columns)
    column = max(len(verdict.name) for verdict in verdicts) + 4
    lines = [f"{request.method} {format_url(request.url)}", ""]
    for verdict in verdicts:
        head = f"{SIGNS[verdict.mark]} {verdict.name}".ljust(column)
        lines.append(redact(f"{head}{verdict.seen}", request.headers))
        for text in filter(None, (f"{verdict.why}.", verdict.advice and f"→ {verdict.advice}")):
            indent = " " * column
            wrapped = textwrap.wrap(
                redact(text, request.headers), width, initial_indent=indent, subsequent_indent=indent
            )
            lines.extend(wrapped)
    notes = [] if counted else textwrap.wrap(NOT_COUNTED, width)
    return "\n".join([*map(visible, lines), "", summary(verdicts), *notes])


def summary(verdicts: Sequence[ProbeVerdict]) -> str:
    count = {mark: sum(verdict.mark is mark for verdict in verdicts) for mark in Mark}
    return f"{count[Mark.RIGHT]} right, {count[Mark.WRONG]} wrong, {count[Mark.UNCLEAR]} unclear."


def as_json(verdicts: Sequence[ProbeVerdict], request: ProbeRequest, *, counted: bool) -> str:
    document = {
        "method": request.method,
        "url": format_url(request.url),
        "effects_counted": counted,
        "ok": not any(verdict.mark is Mark.WRONG for verdict in verdicts),
        "tries": [
            {
                "try": verdict.name,
                "verdict": verdict.mark.value,
                "seen": redact(verdict.seen, request.headers),
                "why": redact(verdict.why, request.headers),
                "advice": verdict.advice,
            }
            for verdict in verdicts
        ],
    }
    return json_text(document, indent=2)
