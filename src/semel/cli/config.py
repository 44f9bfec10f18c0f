"""`semel config`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click

from semel.cli.applications import store_of
from semel.cli.options import json_option, option
from semel.cli.output import print_json, print_table
from semel.cli.policies import load_app, policy_options, read_policy
from semel.errors import StoreMisconfigured
from semel.stores.open import opener_for as opener_of
from semel.stores.open import url_of
from semel.stores.url import StoreUrl

SECRET = ("password", "passfile", "sslkey", "sslpassword")
URLS = ("front", "back")
"""Options that are URLs of stores, with passwords of their own."""
SECRET_VARIABLES = (
    "SEMEL_CALL_DATA",
    "SEMEL_CALL_HEADERS",
    "SEMEL_CALL_JSON_BODY",
    "SEMEL_GATEWAY_SECRET",
    "SEMEL_TRY_HEADERS",
    "SEMEL_TRY_IDENTITY",
)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str
    source: str


@click.command()
@option("--store", envvar="SEMEL_STORE", metavar="URL", help="The store, if there is one yet.")
@policy_options
@json_option
@click.pass_context
def config(
    ctx: click.Context,
    store: str | None,
    url: str | None,
    app: str | None,
    rules: Path | None,
    path: str,
    json: bool,
) -> None:
    """Show the effective configuration and where each value comes from.

    The store and its options (passwords are hidden), the policy, and the SEMEL_* variables of the environment. With
    --app, store and policy are those of the application, and SEMEL_STORE is ignored. Ends with 1 if no command reads
    one of these variables: its name is probably misspelt.

    \b
    Examples:
      semel config
      semel config --app shop.main:app --json
    """
    policy = list(_policy_settings(url, app, rules, path))  # first: with its first request an application is complete
    settings = [*(_store_settings(ctx, store) if app is None else _app_settings(ctx, app)), *policy]
    known = dict(_variables(ctx))
    used = {name for name in os.environ if name.startswith("SEMEL_")}
    settings += [
        Setting(name, _show_variable(name), f"environment, for {known[name]}") for name in sorted(used & known.keys())
    ]
    unknown = sorted(name for name in used - known.keys() if not name.startswith(("SEMEL_TEST_", "_SEMEL")))
    if json:
        rows = [{"name": each.name, "value": each.value, "source": each.source} for each in settings]
        print_json({"settings": rows, "unknown": unknown})
    else:
        print_table(("setting", "value", "source"), [(each.name, each.value, each.source) for each in settings])
        for name in unknown:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "no option has this name"
            click.echo(f"{name} is set, and nothing reads it: {hint}", err=True)
    ctx.exit(1 if unknown else 0)


class RecordedUrl(StoreUrl):
    """A store URL that records which options the store reads, and their values."""

    taken: dict[str, tuple[str, bool]]

    def text_option(self, name: str, default: str = "") -> str:
        given = name in self.options
        value = super().text_option(name, default)
        self.taken[name] = (value, given)
        return value


def _store_settings(ctx: click.Context, url: str | None) -> Iterator[Setting]:
    if url is None:
        yield Setting("store", "(none)", "neither --store nor SEMEL_STORE is given")
        return
    source = "--store" if _is_typed(ctx) else "SEMEL_STORE"
    try:
        yield from _url_settings(url, source)
    except StoreMisconfigured as error:
        raise click.BadParameter(str(error), ctx, param_hint="--store") from error


def _is_typed(ctx: click.Context) -> bool:
    return ctx.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE


def _app_settings(ctx: click.Context, app: str) -> Iterator[Setting]:
    """The settings of the application's own store."""
    if _is_typed(ctx):
        raise click.UsageError("Give only one of --store and --app: an application has a store of its own.")
    store = store_of(load_app(app))
    url = None if store is None else url_of(store)
    if url is not None:
        yield from _url_settings(url, app)
    elif store is not None:
        yield Setting("store", f"{type(store).__name__}, which was not opened by a URL", app)
    else:
        yield Setting("store", "(not found)", f"{app} keeps it where it cannot be seen")


def _url_settings(url: str, source: str) -> Iterator[Setting]:
    parsed = RecordedUrl.parse(url)
    assert isinstance(parsed, RecordedUrl)
    parsed.taken = {}
    opener_of(parsed).open_store(parsed, None)
    parsed.finish()
    yield Setting("store", parsed.shown, source)
    for name, (value, given) in parsed.taken.items():
        if given or value:
            yield Setting(f"store.{name}", _show_option(name, value), source if given else "default")


def _show_option(name: str, value: str) -> str:
    if name in SECRET:
        return "***"
    return StoreUrl.parse(value).shown if name in URLS else value


def _policy_settings(url: str | None, app: str | None, rules: Path | None, path: str) -> Iterator[Setting]:
    found = read_policy(url, app, rules, path)
    for name, value in found.document.items():
        if name in ("problems", "stored"):
            continue
        if name == "operations":
            for operation in value:
                rest = {each: what for each, what in operation.items() if each != "match"}
                yield Setting(f"policy for {operation['match']}", _text(rest), found.source)
        else:
            yield Setting(f"policy.{name}", _text(value), found.source)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _show_variable(variable: str) -> str:
    value = os.environ[variable]
    if variable in SECRET_VARIABLES:
        return "***"
    try:
        return StoreUrl.parse(value).shown if "://" in value or ":?" in value else value
    except StoreMisconfigured:
        return "(not a URL)"


def _variables(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Every variable that some command reads, and the option it stands for."""
    root = ctx.find_root()

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name is not None:
                words = ("SEMEL", *path[1:], parameter.name)
                yield "_".join(words).upper().replace("-", "_"), f"{' '.join(path)} {parameter.opts[0]}"
                if isinstance(parameter.envvar, str):
                    yield parameter.envvar, parameter.opts[0]
        if isinstance(command, click.Group):
            for name in command.list_commands(root):
                try:
                    inner = command.get_command(root, name)
                except click.ClickException:
                    continue  # its extra is not installed, so nothing reads its variables
                if inner is not None:
                    yield from walk(inner, (*path, name))

    yield from walk(root.command, ("semel",))
