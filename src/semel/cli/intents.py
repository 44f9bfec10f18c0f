"""What `semel call` and `semel journal` share: the journal that is named, headers, and how a request is repeated."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from semel.cli.options import duration, option
from semel.client.journal import Journal, find_path
from semel.client.retry import Retry
from semel.codecs.seal import Seal
from semel.core.journal import IntentId
from semel.core.retries import ATTEMPTS_MAX
from semel.errors import StoreMisconfigured

F = TypeVar("F", bound=Callable[..., Any])
Headers = tuple[tuple[str, str], ...]
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OF_MESSAGE = frozenset({"connection", "content-length", "host", "semel-intent", "transfer-encoding"})
"""Headers that say how a request is sent. They are not the caller's."""
FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class JournalChoice:
    """The journal that the options name. It is opened when everything else is known to be right."""

    url: str | None
    namespace: str
    seal: Seal | None

    @property
    def shown(self) -> str:
        return self.url or f"sqlite:///{default_path()}"

    def open(self, *, existing: bool = False) -> Journal:
        """Open it until the command ends. `existing` is for commands that do not begin a journal."""
        path = Path(find_path(self.shown))
        if existing and not path.exists():
            raise click.BadParameter(f"{path}: there is no such file; semel call makes it", param_hint="--journal")
        if self.url is None:
            click.echo(f"The journal is {path} (--journal or SEMEL_JOURNAL names another).", err=True)
            _make_folder(path.parent)
        journal = Journal(self.shown, namespace=self.namespace, seal=self.seal)
        click.get_current_context().call_on_close(journal.close)
        return journal


def default_path() -> Path:
    """Where the journal is that no option names: in the state directory of the user (XDG)."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(folder):  # the specification says to ignore any other
        return Path(folder, "semel", "journal.db")
    try:
        return Path.home() / ".local" / "state" / "semel" / "journal.db"
    except RuntimeError as error:
        raise click.UsageError("This user has no home directory: name the journal with --journal.") from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreMisconfigured(f"the folder {folder} cannot be made: {error.strerror}. Nothing was sent") from error


def read_url(url: str) -> str:
    """The URL of a journal that outlives the command."""
    try:
        path = find_path(url)
    except StoreMisconfigured as error:
        raise click.BadParameter(str(error)) from error
    if not path:
        raise click.BadParameter(
            "memory:// would end with this command, and protect nothing: write sqlite:////var/lib/shop/journal.db"
        )
    return url


def read_seal(name: str) -> Seal:
    """The keys of a sealed journal, from a file. No message shows them."""
    keys: dict[str, bytes] = {}
    try:
        lines = Path(name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{name}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            key_id, digits = line.split()
            key = bytes.fromhex(digits)
        except ValueError:
            raise click.BadParameter(
                f"{name}, line {number}: write a key id and 64 hexadecimal digits, with a blank between them"
            ) from None
        if key_id in keys:
            raise click.BadParameter(f"{name}, line {number}: the key id {key_id!r} stands there twice")
        keys[key_id] = key
    try:
        return Seal(keys)
    except StoreMisconfigured as error:
        raise click.BadParameter(f"{name}: {error}") from error


def read_name(name: str) -> str:
    try:
        return IntentId(name).checked().name
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def read_namespace(name: str) -> str:
    try:
        return IntentId("-", name).checked().namespace
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def journal_options(command: F) -> F:
    """Options that name a journal; the command takes them as one `journal`."""

    @functools.wraps(command)
    def with_choice(*, journal: str | None, namespace: str, seal_keys: Seal | None, **others: Any) -> Any:
        return command(journal=JournalChoice(journal, namespace, seal_keys), **others)

    given: tuple[Callable[[F], F], ...] = (
        option(
            "--journal",
            type=read_url,
            envvar="SEMEL_JOURNAL",
            metavar="URL",
            help="The journal, for example sqlite:////var/lib/shop/journal.db; by default one in your state directory "
            "(XDG_STATE_HOME), which is then named on stderr.",
        ),
        option(
            "--namespace",
            type=read_namespace,
            envvar="SEMEL_JOURNAL_NAMESPACE",
            metavar="NAME",
            default="",
            help="Keeps applications apart that share a journal.",
        ),
        option(
            "--seal-keys",
            type=read_seal,
            envvar="SEMEL_SEAL_KEYS",
            metavar="FILE",
            help="The keys of a sealed journal: lines of a key id and 64 hexadecimal digits. The first one seals.",
        ),
    )
    return _with_options(cast("F", with_choice), given)


class HeaderLines(click.types.StringParamType):
    """In the environment, headers stand one a line."""

    envvar_list_splitter = "\n"


def read_headers(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> Headers:
    """`Name: value`, or @FILE with such lines. No message shows a value, which may be a secret."""
    return tuple(header for text in given for header in _headers_of(text))


def _headers_of(text: str) -> Iterator[tuple[str, str]]:
    if not text.startswith("@"):
        yield _header(text, "")
        return
    file = text[1:]
    try:
        lines = Path(file).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file}: {getattr(error, 'strerror', None) or 'it is no ASCII text'}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _header(line, f"{file}, line {number}: ")


def _header(text: str, where: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or TOKEN.fullmatch(name) is None or not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{where}a header is written 'Name: value', in printable ASCII characters")
    if name.lower() in OF_MESSAGE:
        raise click.BadParameter(f"{where}semel sets the header {name} itself: leave it out")
    return name, value


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How a request is sent, and sent again."""

    headers: Headers
    retry: Retry
    lease_s: float
    timeout_s: float


def duration_up_to(most: str) -> Callable[[str], timedelta]:
    """A duration that is not zero."""

    def within(text: str) -> timedelta:
        found = duration(text)
        if not timedelta(milliseconds=1) <= found <= duration(most):
            raise click.BadParameter(f"{text!r} is not between 1ms and {most}")
        return found

    within.__name__ = "duration"
    return within


def send_options(command: F) -> F:
    """The options of sending; the command takes them as one `sent`."""

    @functools.wraps(command)
    def with_options(
        *,
        headers: Headers,
        attempts: int,
        deadline: timedelta,
        timeout: timedelta,
        lease: timedelta,
        **others: Any,
    ) -> Any:
        retry = Retry(attempts=attempts, deadline=deadline.total_seconds())
        return command(sent=SendOptions(headers, retry, lease.total_seconds(), timeout.total_seconds()), **others)

    given: tuple[Callable[[F], F], ...] = (
        option(
            "-H",
            "--header",
            "headers",
            type=HeaderLines(),
            multiple=True,
            callback=read_headers,
            metavar="'NAME: VALUE'",
            help="A header; may be repeated. @FILE reads headers from a file, one a line: other users of the machine "
            "can see the words of a command.",
        ),
        option(
            "--attempts", type=click.IntRange(1, ATTEMPTS_MAX), default=8, help="How often the request is sent at most."
        ),
        option(
            "--deadline",
            type=duration_up_to("24h"),
            metavar="DURATION",
            default="2m",
            help="After this time no attempt begins.",
        ),
        option(
            "--timeout",
            type=duration_up_to("1h"),
            metavar="DURATION",
            default="30s",
            help="How long one attempt waits for the service: to connect, and for each part of its answer.",
        ),
        option(
            "--lease",
            type=duration_up_to("1h"),
            metavar="DURATION",
            default="30s",
            help="How long an intent is held without a sign of life. The run after a killed one waits so long.",
        ),
    )
    return _with_options(cast("F", with_options), given)


def _with_options(command: F, given: tuple[Callable[[F], F], ...]) -> F:
    for each in reversed(given):
        command = each(command)
    return command
