"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import unquote

import click

from semel.core.records import DURATION_MS_MAX
from semel.errors import StoreMisconfigured
from semel.runtime.clock import wall_ms
from semel.store import Filter, Inspectable, StateFilter, Store
from semel.stores.open import open_store
from semel.stores.url import StoreUrl

F = TypeVar("F", bound=Callable[..., Any])
COUNT_MAX = 1_000_000_000
"""The greatest number that an option may have: more than any store holds, and small enough for every store."""
EXIT_STORE = 3
"""The exit status when the store cannot be reached or used; 1 means that the command found something."""
Form = Literal["table", "json", "lines"]
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store, and its URL without password and options."""

    store: Store
    shown: str

    @property
    def inspectable(self) -> Inspectable:
        if not isinstance(self.store, Inspectable):
            raise self.lacks("list its records", "Inspectable")
        return self.store

    def lacks(self, what: str, ability: str) -> click.ClickException:
        """The error for a store of another package that leaves an ability out."""
        kind = type(self.store).__qualname__
        return click.ClickException(
            f"{self.shown} cannot {what}: its {kind} has not the methods of semel.store.{ability}, which a store may "
            "leave out; ask its author"
        )

    def now_ms(self) -> int:
        """The store's time; this machine's if the store does not tell its own."""
        now_ms = self.store.scan(limit=1).now_ms if isinstance(self.store, Inspectable) else None
        return wall_ms() if now_ms is None else now_ms


def open_named(url: str) -> OpenedStore:
    """Open the store that an option names. A URL that is wrong is a usage error; a store that is away is not."""
    try:
        found = OpenedStore(open_store(url), StoreUrl.parse(url).shown)
    except StoreMisconfigured as error:
        raise click.BadParameter(str(error)) from error
    click.get_current_context().call_on_close(found.store.close)
    return found


def open_existing(url: str) -> OpenedStore:
    """The same for commands that read records. They do not create a missing SQLite file."""
    found = open_named(url)
    parts = StoreUrl.parse(url).parts
    if parts.scheme == "sqlite" and not Path(unquote(parts.path)[1:]).exists():
        raise click.BadParameter(f"{found.shown}: there is no such file; semel migrate makes it, or the service does")
    return found


def duration(text: str) -> timedelta:
    """`90s`, `5m`, `24h`, `7d`, or a number of seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(ms|s|m|h|d|w)?", text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration: write 90s, 5m, 24h, 7d or a number of seconds")
    seconds = float(found[1]) * UNITS[found[2] or "s"]
    if seconds * 1000 > DURATION_MS_MAX:
        raise click.BadParameter(f"{text!r} is longer than ten years")
    return timedelta(seconds=seconds)


def count(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


class Number(click.FloatRange):
    """A number within its range. `nan` is within none, and click lets it pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number in the range {self._describe_range()}.", param, ctx)
        return number


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option whose help names its environment variable."""
    return click.option(*names, show_envvar=True, **settings)


def store_option(command: F) -> F:
    return _store_option(open_existing)(command)


def new_store_option(command: F) -> F:
    """For commands that make a store, or say whether it can be made."""
    return _store_option(open_named)(command)


def _store_option(opens: Callable[[str], OpenedStore]) -> Callable[[F], F]:
    return option(
        "--store",
        type=opens,
        required=True,
        envvar="SEMEL_STORE",
        metavar="URL",
        help="The store, for example sqlite:///semel.db, postgresql://host/database or redis://host.",
    )


def json_option(command: F) -> F:
    return option("--json", is_flag=True, help="Print JSON instead.")(command)


def lines_option(command: F) -> F:
    text = "Print one JSON document a line for each record, as `semel keys resolve-many` takes it."
    return option("--json-lines", is_flag=True, help=text)(command)


def form_of(json: bool, json_lines: bool) -> Form:
    if json and json_lines:
        raise click.UsageError("Give only one of --json and --json-lines.")
    return "json" if json else "lines" if json_lines else "table"


def names_option(command: F) -> F:
    text = "Show the names of keys. A name may be all that a stranger needs to read an answer."
    return option("--names", is_flag=True, help=text)(command)


def yes_option(command: F) -> F:
    return option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def limit_option(default: int, text: str) -> Callable[[F], F]:
    return option("--limit", type=click.IntRange(1, COUNT_MAX), default=default, help=text)


def filter_options(command: F) -> F:
    """Options that choose records; `filter_of` makes a `Filter` of them."""
    given: tuple[Callable[[F], F], ...] = (
        option("--state", type=click.Choice(get_args(StateFilter)), help="Only records in this state."),
        option("--tenant", help="Only records of this tenant."),
        option("--scope", help="Only records of this scope, for example 'POST /payments'."),
        option("--prefix", default="", help="Only keys whose name begins with this."),
        option(
            "--older-than",
            type=duration,
            metavar="DURATION",
            default="0s",
            help="Only records created at least this long ago.",
        ),
    )
    for each in reversed(given):
        command = each(command)
    return command


def filter_of(
    state: StateFilter | None, tenant: str | None, scope: str | None, prefix: str, older_than: timedelta
) -> Filter:
    return Filter(state, tenant, scope, prefix, round(older_than.total_seconds() * 1000))


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is no terminal to ask: add --yes to do it.")
    click.confirm(question, abort=True)
