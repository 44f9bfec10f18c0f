"""`GET /.well-known/idempotency`: the live policy as a document, JSON for programs and HTML for people.

Problem types are links to sections of that page, so their documentation is always there and always current.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from semel.core.fingerprint import Fingerprint
from semel.core.http import PROBLEMS, Response, status_of
from semel.core.policy import Policy
from semel.core.records import NAME_MAX
from semel.http.gate import Gate
from semel.http.marks import Marked
from semel.http.monitors import Monitored

ListMarks = Callable[[], Iterable[Marked]]
"""Lists the marked endpoints by asking the framework's router. Called when the document is requested."""


def published(
    gate: Gate, path: str, headers: Sequence[tuple[bytes, bytes]], *, root: str = "", marks: ListMarks = tuple
) -> Response | Monitored | None:
    """For GET: the document, or the accepted operation that the path names; None when the path is the application's.

    `path` is the part below `root`, the path at which the caller finds the application.
    """
    if not path.startswith(gate.published_at):
        return None
    if path != gate.publish:
        return gate.monitors.find(path)
    shown = document(gate, root, marks())
    accept = b",".join(value for name, value in headers if name == b"accept")
    if b"text/html" in accept:
        return _response(b"text/html; charset=utf-8", _page(shown).encode())
    return _response(b"application/json", json.dumps(shown, indent=2).encode())


def document(gate: Gate, root: str = "", marks: Iterable[Marked] = ()) -> dict[str, Any]:
    """What a caller may know about the treatment of its keys. Paths are whole, as the caller sees them."""
    policy, root = gate.policy, root.rstrip("/")
    marked = [(f"{','.join(each.methods)} {root}{each.path}", each.policy) for each in marks]
    rules = [(_prefix_path(root, rule.match.strip()), rule.policy) for rule in gate.rules]
    return {
        "headers": list(policy.headers),
        "key": {"format": _format(policy), "max_length": NAME_MAX},
        **{name: show(policy) for name, (_, show) in SHOWN.items()},
        "operations": [
            *({"match": match, **_operation(each, policy)} for match, each in [*marked, *rules]),
            {"match": "everything else", "methods": sorted(policy.methods), "required": policy.required},
        ],
        "stored": "status, headers and body of the answer; a digest of the request",
        "released_statuses": sorted(policy.release_statuses),
        "problems": [
            {
                "type": f"{gate.answers(root).base}#{name}",
                "status": status_of(name, policy.errors),
                "title": kind.title,
                "retryable": kind.retryable,
                "advice": kind.advice,
            }
            for name, kind in PROBLEMS.items()
        ],
    }


def _response(content_type: bytes, body: bytes) -> Response:
    headers = (
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"vary", b"accept"),
        (b"cache-control", b"max-age=300"),
    )
    return Response(200, headers, body)


def _prefix_path(root: str, match: str) -> str:
    methods, slash, path = match.partition("/")
    return f"{methods}{root}{slash}{path}"


def _format(policy: Policy) -> str:
    return policy.key_format if isinstance(policy.key_format, str) else policy.key_format.pattern


def _fingerprint(policy: Policy) -> str:
    """The kind of fingerprint. A service does not publish which parts of a request count."""
    if isinstance(policy.fingerprint, Fingerprint):
        return policy.fingerprint.body or "without the body"
    return policy.fingerprint if isinstance(policy.fingerprint, str) else "chosen by the service"


SHOWN: dict[str, tuple[str, Callable[[Policy], Any]]] = {
    "retention_seconds": ("retention", lambda policy: policy.retention_ms / 1000),
    "in_flight": ("in_flight", lambda policy: policy.in_flight),
    "guarantee": ("guarantee", lambda policy: policy.guarantee),
    "scope": ("scope", lambda policy: policy.scope if isinstance(policy.scope, str) else "chosen by the service"),
    "per_host": ("per_host", lambda policy: policy.per_host),
    "expired": ("expired", lambda policy: policy.expired),
    "fingerprint": ("fingerprint", _fingerprint),
    "body_max": ("body_max", lambda policy: policy.body_max),
    "result_max": ("result_max", lambda policy: policy.result_max),
    "quota": ("quota", lambda policy: policy.quota),
    "errors": ("errors", lambda policy: policy.errors),
}
"""What the document shows of every policy, by the field that it comes from."""
ALSO_DIFFERS: dict[str, tuple[str, Callable[[Policy], Any]]] = {
    "key_format": ("key_format", _format),
    "headers": ("headers", lambda policy: list(policy.headers)),
    "methods": ("methods", lambda policy: sorted(policy.methods)),
}


def _operation(policy: Policy | None, rest: Policy) -> dict[str, Any]:
    """One rule or mark: whether it needs a key, and what differs from the rest in a way that a caller can see."""
    if policy is None:
        return {"exempt": True}
    differs = {field.name for field in fields(Policy) if getattr(policy, field.name) != getattr(rest, field.name)}
    shown = {name: show(policy) for name, (field, show) in {**SHOWN, **ALSO_DIFFERS}.items() if field in differs}
    return {"required": policy.required, **shown}


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>How retries are made safe here</title>
<style>
:root {{ color-scheme: light dark; --page: #f4f6f5; --card: #fff; --ink: #16211f; --soft: #55635f; --line: #dde4e1;
  --accent: #0f766e; --lit: #e0f2ef }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #0e1413; --card: #161e1c; --ink: #e6eeeb; --soft: #9fb0aa;
  --line: #2a3532; --accent: #2dd4bf; --lit: #12332e }} }}
body {{ font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--page); margin: 0; padding: clamp(16px, 4vw, 48px) }}
main {{ max-width: 46rem; margin: auto }}
h1 {{ font-size: 1.7rem; line-height: 1.2; letter-spacing: -.02em; border-top: 4px solid var(--accent);
  padding-top: 1rem }}
h2 {{ font-size: 1.2rem; margin-top: 2rem }}
h3 {{ margin: 0; font-size: 1rem; font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace;
  color: var(--accent); overflow-wrap: anywhere }}
code {{ font: .88em ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace; overflow-wrap: anywhere }}
table, section {{ background: var(--card); border: 1px solid var(--line); border-radius: 12px }}
table {{ border-spacing: 0; width: 100%; font-size: .93rem }}
td, th {{ text-align: left; vertical-align: top; padding: .5rem .9rem }}
th {{ color: var(--soft) }}
tr + tr td {{ border-top: 1px solid var(--line) }}
section {{ padding: .8rem 1rem; margin: .6rem 0 }}
section p {{ margin: .2rem 0 0 }}
section:has(:target) {{ background: var(--lit); border-color: var(--accent) }}
</style>
<main>
<h1>How retries are made safe here</h1>
<p>Send one key for each logical operation in <code>{header}</code>, and the same key with every retry of it. The
operation takes effect once. Every repeat gets the first answer, marked <code>Idempotent-Replayed: true</code>, for
{retention}.</p>
<table><tr><th>operations<th>key<th>differs{operations}</table>
<p>A repeat while the first request runs: <b>{in_flight}</b>. Guarantee: <b>{guarantee}</b>. Stored: {stored}.</p>
<h2>Problems</h2>
<p>An answer whose <code>type</code> leads here is one of these.</p>
{problems}
</main>
</html>
"""


def _page(data: dict[str, Any]) -> str:
    hours = data["retention_seconds"] / 3600
    texts = {name: escape(data[name]) for name in ("in_flight", "guarantee", "stored")}
    return PAGE.format(
        header=escape(data["headers"][0]),
        retention=f"{hours:g} hours" if hours >= 1 else f"{data['retention_seconds']:g} seconds",
        operations="".join(map(_row, data["operations"])),
        problems="\n".join(map(_section, data["problems"])),
        **texts,
    )


def _row(operation: dict[str, Any]) -> str:
    key = "exempt" if operation.get("exempt") else "required" if operation.get("required") else "optional"
    others = {name: value for name, value in operation.items() if name not in ("match", "exempt", "required")}
    differs = ", ".join(f"{name.replace('_', ' ')} {_format_value(value)}" for name, value in others.items())
    return f"\n<tr><td><code>{escape(operation['match'])}</code><td>{key}<td>{escape(differs)}"


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _section(problem: dict[str, Any]) -> str:
    name = problem["type"].partition("#")[2]
    title, advice = escape(problem["title"]), escape(problem["advice"])
    return f"<section><h3 id='{name}'>{problem['status']} {title}</h3><p>{advice}</p></section>"
