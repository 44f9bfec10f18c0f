"""`semel guide`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from semel.cli.policies import policy_options, read_policy
from semel.codecs.terminal import visible_lines

IN_FLIGHT = {
    "reject": "it is refused with 409 and `Retry-After`",
    "wait": "it waits for the first one's answer, for a while, and is refused with 409 and `Retry-After` after that",
    "accept": "it is answered with 202 and a `Location` where the answer will be",
}
GUARANTEES = {
    "at-most-once": "An operation runs at most once. If the service was interrupted in the middle, repeats are "
    "answered with `outcome-unknown` (409) until an operator of the service has found out what happened. Ask the "
    "operator; do not try with a new key.",
    "at-least-once": "After an interruption in the middle, a repeat runs the operation again.",
    "exactly-once": "An operation takes effect exactly once, also when the service is interrupted in the middle.",
}
FORMATS = {
    "any": "any text of 1 to {max_length} visible characters, for example a UUID",
    "uuid": "a UUID",
    "ulid": "a ULID",
    "strict": 'a quoted string of 1 to {max_length} characters (RFC 9651), for example `"order-1"`',
}
EXAMPLE = "8e03978e-40d5-43dd-bc93-6894a57f9324"
EXAMPLES = {"strict": f'"{EXAMPLE}"', "ulid": "01JCQ5ZV7Y3W8N6K4H2G0F9D1B"}


@click.command()
@policy_options
def guide(url: str | None, app: str | None, rules: Path | None, path: str) -> None:
    """Print a "retry safety" section for an API's documentation, or for an agent's skill file.

    Markdown, generated from the live policy: what to send, what to expect, and what to do about each answer. Without
    --url, --app or --rules it describes the default policy.

    \b
    Examples:
      semel guide --url https://api.example.com >> docs/api.md
      semel guide --app shop.main:app > skills/retry-safety.md
    """
    click.echo(visible_lines(markdown(read_policy(url, app, rules, path).document)))


def markdown(document: dict[str, Any]) -> str:
    header, key = document["headers"][0], document["key"]
    form = FORMATS.get(key["format"], "text that matches `{format}`").format(**key)
    hours = document["retention_seconds"] / 3600
    retention = f"{hours:g} hours" if hours >= 1 else f"{document['retention_seconds']:g} seconds"
    return f"""## Retry safety

Send the header `{header}` with every request that changes something: **one new key for each logical operation, the same
key with every retry of it**. The operation takes effect once; a repeat gets the first answer again, byte for byte, with
`Idempotent-Replayed: true`.

- A key is {form}. Make it before the first try and keep it, with the body, until you have an answer. A key that is lost
  with a crashed process cannot make its retry safe.
- A retry is the same request: same method, path and body. The same key with another request is refused with 422.
- The answer is kept for {retention}. Retry within that time.
- A failure is an answer, too: a repeat gets it again. To try anew after a final failure, use a new key.
- While the first request is running, a repeat does not start it again: {IN_FLIGHT[document["in_flight"]]}.
- After {_statuses(document["released_statuses"])} nothing was done: the same key may be tried again.

{GUARANTEES[document["guarantee"]]}

{_operations(document["operations"])}

### How to retry

1. Make a key and keep it. Send the request.
2. No answer, a broken connection or a time-out: send the *same* request with the *same* key, after a pause that grows
   with each try (1 s, 2 s, 4 s, … with some randomness), and not before `Retry-After`.
3. An answer: done. If it is a problem (`application/problem+json`), its `type` says what to do:

{_problems(document["problems"])}

```console
$ curl -X POST https://…/… -H '{header}: {EXAMPLES.get(document["key"]["format"], EXAMPLE)}' -d @body.json
```
"""


def _statuses(statuses: list[int]) -> str:
    return " or ".join(filter(None, [", ".join(map(str, statuses[:-1])), *map(str, statuses[-1:])])) or "no status"


def _operations(operations: list[dict[str, Any]]) -> str:
    lines = ["| operation | key | differs |", "|---|---|---|"]
    for operation in operations:
        key = "not used" if operation.get("exempt") else "required" if operation.get("required") else "optional"
        others = {name: value for name, value in operation.items() if name not in ("match", "exempt", "required")}
        differs = ", ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in others.items())
        lines.append(f"| {_cell(operation['match'])} | {key} | {_cell(differs)} |")
    return "\n".join(lines)


def _value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _problems(problems: list[dict[str, Any]]) -> str:
    lines = ["| status | `type` ends with | retry with the same key? | what to do |", "|---|---|---|---|"]
    for problem in problems:
        name = problem["type"].partition("#")[2] or problem["type"]
        again = "yes" if problem["retryable"] else "no"
        lines.append(f"| {problem['status']} | `{name}` | {again} | {_cell(problem['advice'])} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
