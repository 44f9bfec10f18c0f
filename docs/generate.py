"""Writes what the docs take from the code: the tables, the state diagram, the policy's defaults, the package's rooms,
the commands, the extras.

`python docs/generate.py` rewrites the pages; `--check` only says whether they are up to date (the tests do that).
A generated part stands between `<!-- generated: name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import click
from drawing import draw

import semel
from semel import Policy
from semel.client import Retry
from semel.core.dialects import DAY_MS, DIALECTS, HOUR_MS, KeyDialect, KeyQuoting
from semel.core.outcomes import REASONS
from semel.core.retries import NEXT_STEPS, OF_PROBLEM, OF_STATUS, AttemptEnd
from semel.core.tables import CLAIM, SETTLE, Disposal, Ruling, Situation
from semel.core.verdicts import VERDICTS

DOCS = Path(__file__).parent
PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def claim_table() -> str:
    rows = [f"| {where.value} | {same.value} | {other.value} |" for where, (same, other) in CLAIM.items()]
    return "\n".join(["| record | same fingerprint | other fingerprint |", "|---|---|---|", *rows])


def settle_table() -> str:
    rows = [f"| {ending.value} | {disposal.value} |" for ending, disposal in SETTLE.items()]
    return "\n".join(["| how the work ended | what happens to the key |", "|---|---|", *rows])


def verdict_table() -> str:
    """The table of verdicts on deliveries."""
    rows = [
        f"| {handling.value} | {row.settling.value} | {'yes' if row.counted else 'no'} | `{handling.name.lower()}` |"
        for handling, row in VERDICTS.items()
    ]
    head = [
        "| how the delivery ended | what the broker is told | counts as an attempt | in metrics |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def dialect_table() -> str:
    """The dialects of other services' keys."""
    head = [
        "| dialect | where the key stands | longest key | kept for | the key is another request's | still running |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_dialect, DIALECTS.values())])


def _dialect(dialect: KeyDialect) -> str:
    quoted = ", in double quotes" if dialect.quoting is KeyQuoting.QUOTED else ""
    where = f"header `{dialect.header}`{quoted}" if dialect.header else f"JSON field `{dialect.body_field}`"
    if dialect.put is not None:
        where = f"form field `{dialect.put(b'', '').decode().rstrip('=')}`"
    reused = ", ".join(f"`{each}`" for each in (*dialect.reused, *dialect.reused_codes)) or "-"
    busy = ", ".join(f"`{each}`" for each in (*dialect.busy, *dialect.busy_codes)) or "-"
    name = f"[`{dialect.name.upper().replace('-', '_')}`]({dialect.source})"
    return f"| {name} | {where} | {dialect.key_max} | {_duration(dialect.retention_ms)} | {reused} | {busy} |"


def _duration(ms: int) -> str:
    for unit_ms, unit in ((DAY_MS, "day"), (HOUR_MS, "hour"), (60_000, "minute")):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms} {unit}{'s' if ms > unit_ms else ''}"
    return f"{ms / 1_000:g} seconds"


STATES = {
    Situation.ABSENT: "absent",
    Situation.LIVE: "in_progress",
    Situation.LAPSED_OPEN: "unknown",
    Situation.LAPSED: "unknown",
    Situation.FINISHED: "finished",
    Situation.TOMBSTONE: "tombstone",
}
GRANTS = (Ruling.GRANT, Ruling.TAKE_OVER)
AFTER = {
    Disposal.COMPLETE: "finished",
    Disposal.RELEASE: "absent",
    Disposal.LEAVE: "unknown",
    Disposal.LAPSE: "unknown",
}


def state_diagram() -> str:
    """Every row of the two tables is an arrow; the arrows that only time draws are added."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for where, (same, other) in CLAIM.items():
        for ruling, whose in ((same, "same request"), (other, "other request")):
            target = "in_progress" if ruling in GRANTS else STATES[where]
            label = f"{whose}: {ruling.value.split(' (')[0]}"
            arrows.setdefault((STATES[where], target), []).append(label)
    for ending, disposal in SETTLE.items():
        arrows.setdefault(("in_progress", AFTER[disposal]), []).append(ending.name.lower().replace("_", " "))
    arrows.setdefault(("in_progress", "unknown"), []).append("the lease lapses")
    arrows.setdefault(("unknown", "in_progress"), []).append("the late owner renews")
    arrows.setdefault(("unknown", "finished"), []).extend(["the late owner completes,", "or an operator resolves it"])
    arrows.setdefault(("unknown", "absent"), []).extend(["an operator resolves it:", "nothing was done"])
    arrows.setdefault(("finished", "absent"), []).append("retention ends")
    arrows.setdefault(("finished", "tombstone"), []).extend(["retention ends,", 'expired="refuse"'])
    return draw({ends: list(dict.fromkeys(labels)) for ends, labels in arrows.items()})


SHOWN = {"replay_headers": "all but hop-by-hop, `Set-Cookie`, `Date`, `Server`, auth"}
MORE = {
    "guarantee": "See [Guarantees](guarantees.md).",
    "release_invalid": "See [Invalid requests](#invalid-requests).",
    "errors": "See [Like Stripe](#like-stripe).",
}


def policy_table() -> str:
    """Each field with its default, and the text that editors show for it."""
    texts = field_texts(Policy)
    rows = [
        f"| `{name}` | {SHOWN.get(name) or shown(default)} | {' '.join([texts[name], *MORE.get(name, '').split()])} |"
        for name, default in ((field.name, field.default) for field in fields(Policy))
    ]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def retry_table() -> str:
    """How a caller repeats a request: each field of `Retry`, with its default and the text below it."""
    texts = field_texts(Retry)
    rows = [
        f"| `{field.name}` | {'one for the process' if field.name == 'budget' else shown(field.default)} | "
        f"{texts[field.name]} |"
        for field in fields(Retry)
    ]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def field_texts(values: type) -> dict[str, str]:
    """The string literal below each field of a class, as one line."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(values))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def shown(value: object) -> str:
    if isinstance(value, timedelta):
        return _duration(value // timedelta(milliseconds=1))
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return "none" if value is None else f"`{value!r}`"


def answer_table() -> str:
    """What a caller does after each way in which an attempt can end."""
    rows = []
    others = {AttemptEnd.ANSWERED: ["2xx", "4xx that are not below"], AttemptEnd.SERVER_ERROR: ["500"]}
    for end, step in NEXT_STEPS.items():
        kinds = [f"`{kind}`" for kind, means in OF_PROBLEM.items() if means is end]
        statuses = [f"{status}" for status, means in OF_STATUS.items() if means is end]
        rows.append(f"| {end.value} | {', '.join([*others.get(end, []), *statuses, *kinds]) or '-'} | {step.value} |")
    return "\n".join(["| an attempt ended with | for example | then |", "|---|---|---|", *rows])


def outcome_table() -> str:
    """How a call can end, and why."""
    rows = []
    for outcome, reasons in REASONS.items():
        named = ", ".join(f"`{reason}`" for reason in reasons if reason) or "-"
        rows.append(f"| `{outcome.name.lower()}` | {outcome.value} | {named} |")
    return "\n".join(["| `outcome` of a call | meaning | `reason` |", "|---|---|---|", *rows])


def extras() -> str:
    """What each extra installs, and the Pythons, as pyproject.toml has them."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.[0-9]+$", each)]
    rows = [f"| Python | {', '.join(pythons)} |", f"| `semel` | {_codes(project['dependencies'])} |"]
    rows += [f"| `semel[{name}]` | {_codes(needs)} |" for name, needs in project["optional-dependencies"].items()]
    return "\n".join(["| install | gets |", "|---|---|", *rows])


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def rooms() -> str:
    """The package's rooms, and the modules at its root: what each is for is the first sentence of its docstring."""
    package = Path(semel.__file__).parent
    places = [*package.glob("*/__init__.py"), *package.glob("stores/*/__init__.py"), *package.glob("[a-z]*.py")]
    lines = ["| room | what is in it |", "|---|---|"]
    for path in sorted(places, key=lambda path: (path.parent == package, str(path))):
        name = str(path.relative_to(package)).removesuffix("__init__.py")
        first = re.match(r'"""(.*?)(?:\.\s|"""|\n)', path.read_text())
        assert first is not None, name
        lines.append(f"| `{name}` | {first[1].rstrip('.')} |")
    return "\n".join(lines)


def commands() -> str:
    """Every command of the command line: what its help says, and its options with their environment variables."""
    from semel.cli.group import semel as root

    return "\n\n".join(_command(root, name, "semel") for name in root.list_commands(click.Context(root)))


def _command(group: click.Group, name: str, path: str) -> str:
    command = group.get_command(click.Context(group), name)
    assert command is not None, name
    path = f"{path} {name}"
    arguments = [
        each.make_metavar(click.Context(command)) for each in command.params if isinstance(each, click.Argument)
    ]
    parts = [f"{'#' * (len(path.split()) + 1)} `{' '.join([path, *arguments])}`", *_paragraphs(command.help or "")]
    rows = [_option(each, path) for each in command.params if isinstance(each, click.Option)]
    if rows:
        parts.append("\n".join(["| option | default | variable | |", "|---|---|---|---|", *rows]))
    if isinstance(command, click.Group):
        parts += [_command(command, each, path) for each in command.list_commands(click.Context(command))]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _paragraphs(text: str) -> Iterator[str]:
    """What is printed as it stands (after click's mark for that) stands as it is here, too."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first != "\b":
            yield _escaped(paragraph)
        elif rest.startswith("Examples:\n"):
            yield f"```console\n{textwrap.dedent(rest.partition(chr(10))[2])}\n```"
        else:
            yield f"```\n{rest}\n```"


def _option(option: click.Option, path: str) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    given = str(option.default) if isinstance(option.default, str | int | float) and not option.is_flag else ""
    default = "required" if option.required else f"`{given}`" if given else ""
    own = "_".join([*path.split(), option.name or ""]).upper().replace("-", "_")
    variable = option.envvar if isinstance(option.envvar, str) else own
    return f"| {names} | {default} | `{variable}` | {_escaped(option.help or '')} |"


def _escaped(text: str) -> str:
    """Markdown would take these for something else."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


PARTS: dict[str, Callable[[], str]] = {
    "claim-table": claim_table,
    "settle-table": settle_table,
    "state-diagram": state_diagram,
    "policy-table": policy_table,
    "retry-table": retry_table,
    "verdict-table": verdict_table,
    "dialects": dialect_table,
    "answer-table": answer_table,
    "outcome-table": outcome_table,
    "extras": extras,
    "rooms": rooms,
    "commands": commands,
}


def main(check: bool) -> int:
    stale = []
    for page in PAGES:
        old = page.read_text()
        new = PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}", old)
        if new != old:
            stale.append(page.name)
            if not check:
                page.write_text(new)
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run make docs")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
