"""The group of all commands. Each is imported when it is used, so help is quick and extras are needed only by their
own commands.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import click

from semel.cli.options import EXIT_STORE
from semel.errors import SemelError, StoreError

COMMANDS = {  # name: (where it is, what it does, the extra it needs)
    "demo": ("semel.cli.demo:demo", "Start a shop that takes payments, and see what retries do to it.", "demo"),
    "gateway": ("semel.cli.gateway:gateway", "Put idempotency keys in front of any HTTP service.", "gateway"),
    "try": ("semel.cli.probe:try_", "Try whether an API is safe to retry, and say what is wrong.", "cli"),
    "call": ("semel.cli.call:call", "Send a request that takes effect once, however often you run it.", "cli"),
    "journal": ("semel.cli.journal:journal", "List, show, resume, forget and purge the intents of a journal.", "cli"),
    "migrate": ("semel.cli.migrate:migrate", "Create or upgrade the tables of a store.", "cli"),
    "doctor": ("semel.cli.doctor:doctor", "Examine a store: can it keep what it promises?", "cli"),
    "keys": ("semel.cli.keys:keys", "List, show, resolve, release, expire and delete records.", "cli"),
    "stuck": ("semel.cli.stuck:stuck", "Find unknown outcomes, and leases that are held for too long.", "cli"),
    "stats": ("semel.cli.stats:stats", "Count records by state, tenant and scope, and messages by state.", "cli"),
    "tail": ("semel.cli.tail:tail", "Follow records as they change.", "cli"),
    "purge": ("semel.cli.purge:purge", "Delete records past retention.", "cli"),
    "relay": ("semel.cli.relay:relay", "Publish the messages of a store's outbox to a broker.", "cli"),
    "outbox": ("semel.cli.outbox:outbox", "List, show, redrive, discard and purge messages.", "cli"),
    "config": ("semel.cli.config:config", "Show the effective configuration and where each value comes from.", "cli"),
    "openapi": ("semel.cli.openapi:openapi", "Print the key's header and the problems as OpenAPI.", "cli"),
    "guide": ("semel.cli.guide:guide", 'Print a "retry safety" section for an API\'s documentation.', "cli"),
}


class StoreFailure(click.ClickException):
    """The store could not be asked, so the command knows nothing about its records."""

    exit_code = EXIT_STORE


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (place, _, _) in COMMANDS.items() if find_spec(place.partition(":")[0]) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        place, _, extra = COMMANDS[cmd_name]
        module, _, name = place.partition(":")
        try:
            return cast(click.Command, getattr(import_module(module), name))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "semel":
                raise
            raise click.ClickException(
                f'semel {cmd_name} needs {error.name}, which is not installed: pip install "semel[{extra}]"'
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Print errors and warnings of semel as one line, without a traceback."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except StoreError as error:
                raise StoreFailure(str(error)) from error
            except SemelError as error:
                raise click.ClickException(str(error)) from error


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"Warning: {message}", err=True)


@click.group(
    cls=LazyGroup,
    context_settings={"auto_envvar_prefix": "SEMEL", "show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="semel", prog_name="semel", message="%(prog)s %(version)s", allow_from_autoenv=False)
def semel() -> None:
    """Make retries safe, and look after the records that do it.

    Most commands take the store's URL as --store, or from SEMEL_STORE. Every option can also be given as an environment
    variable: --limit of "semel keys list" is SEMEL_KEYS_LIST_LIMIT.

    A command ends with 0 when all is well, and with 1 when it found something or was refused. It ends with 2 when it
    was called wrongly, and with 3 when the store could not be reached or used.

    Completion of commands and options: eval "$(_SEMEL_COMPLETE=bash_source semel)" in ~/.bashrc; zsh_source and
    fish_source are for the other shells.

    \b
    Examples:
      export SEMEL_STORE=postgresql://localhost/shop
      semel doctor
      semel stuck
      semel keys list --state unknown
    """
