"""`semel demo`: a payments service to try everything on, with a page at http://127.0.0.1:8000."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click
from click.core import ParameterSource

from semel.cli.options import option
from semel.demo.supervisor import PortBusy, WorkerFailed, listen, supervise

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@click.command()
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    help="Port to listen on; 0 takes any free one. If the default is busy, the next free port is used.",
)
@option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the store, the bank's ledger and the timeline. Default: a temporary one, removed at the end.",
)
@option("--open/--no-open", default=None, help="Open the page in a browser. Default: in a terminal only.")
@click.pass_context
def demo(context: click.Context, host: str, port: int, data: Path | None, open: bool | None) -> None:
    """Start a shop that takes payments, and see what retries do to it.

    The page has a Pay button and a switch for the protection. Other buttons do what goes wrong in real life: a double
    click, a lost answer, twenty clicks at once, a crash in the middle, one key for two amounts. On the left is what the
    client sees, on the right the bank's ledger, below the life of the key. Everything stays on this machine.

    \b
    Examples:
      semel demo
      semel demo --port 9000 --data ./demo --no-open
    """
    if find_spec("uvicorn") is None:
        raise click.ClickException('semel demo needs uvicorn: pip install "semel[demo]"')
    if sys.platform == "win32":
        raise click.ClickException("semel demo hands its socket to its workers, which needs Linux, macOS or WSL")
    chosen = context.get_parameter_source("port") is not ParameterSource.DEFAULT
    with _open_listener(host, port, chosen=chosen) as listener, _open_folder(data) as folder:
        address = _address(host, listener)
        if not chosen and listener.getsockname()[1] != port:
            click.echo(f"Port {port} is in use; taking the next free one.\n")
        click.echo(_greeting(address, folder, kept=data is not None))
        sys.stdout.flush()
        if open or (open is None and sys.stdout.isatty() and _has_screen()):
            webbrowser.open(address)
        try:
            supervise(listener, folder, lambda text: click.echo(text, err=True))
        except WorkerFailed as error:
            raise click.ClickException(str(error)) from error
    click.echo("\nStopped.")


@contextmanager
def _open_listener(host: str, port: int, *, chosen: bool) -> Iterator[socket.socket]:
    try:
        listener = listen(host, port, further=not chosen)
    except PortBusy as error:
        raise click.ClickException(f"{error}: choose another with --port, or --port 0 for any free one") from error
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    with listener:
        yield listener


@contextmanager
def _open_folder(data: Path | None) -> Iterator[Path]:
    if data is None:
        with tempfile.TemporaryDirectory(prefix="semel-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"--data {data}: {error.strerror}") from error
    if not os.access(data, os.W_OK | os.X_OK):
        raise click.ClickException(f"--data {data}: this folder cannot be written to")
    yield data


def _address(host: str, listener: socket.socket) -> str:
    name = WILDCARDS.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"


def _greeting(address: str, folder: Path, *, kept: bool) -> str:
    key = f"order-{secrets.token_hex(3)}"
    curl = f"curl -i {address}/payments -H 'Idempotency-Key: {key}' -d"
    return f"""semel demo: a shop that takes payments, and a bank that counts them.

  page  {click.style(address, bold=True)}
  data  {folder}{"" if kept else "  (removed at the end; keep it with --data FOLDER)"}

Or from another terminal: pay, repeat, and use the key for another amount.

  {curl} '{{"amount": 2500}}'  # 201
  {curl} '{{"amount": 2500}}'  # 201, Idempotent-Replayed: true
  {curl} '{{"amount": 9900}}'  # 422

Ctrl-C stops everything."""


def _has_screen() -> bool:
    """Whether a browser would have a window, and not be a text browser in this terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
