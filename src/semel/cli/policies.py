"""Reads a live policy from a running service, an application, or a rules file. All give the same document.

A service and an application are asked for `/.well-known/idempotency`, so commands show what callers get.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import click

from semel.cli.options import option
from semel.core.http import WELL_KNOWN
from semel.core.policy import Policy
from semel.http.document import document
from semel.http.gate import Gate

F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_S = 10
SIZE_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """The policy document, and where it came from."""

    document: dict[str, Any]
    source: str


def policy_options(command: F) -> F:
    given: tuple[Callable[[F], F], ...] = (
        option("--url", help="Ask the running service at this address, for example https://api.example.com."),
        option("--app", metavar="MODULE:NAME", help="Ask this ASGI or WSGI application, without a server."),
        option(
            "--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Take a gateway's rules file."
        ),
        option("--path", default=WELL_KNOWN, help="Where the service publishes its policy."),
    )
    for each in reversed(given):
        command = each(command)
    return command


def read_policy(url: str | None, app: str | None, rules: Path | None, path: str) -> PublishedPolicy:
    """The policy that was asked for; without any source, the default one."""
    given = [each for each in (url, app, rules) if each is not None]
    if len(given) > 1:
        raise click.UsageError("Give only one of --url, --app and --rules.")
    if url is not None:
        return PublishedPolicy(_from_service(url, path), url)
    if app is not None:
        return PublishedPolicy(_from_app(app, path), app)
    if rules is not None:
        return PublishedPolicy(_from_rules(rules), str(rules))
    return PublishedPolicy(document(Gate(Policy())), "default")


def _from_service(url: str, path: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        _ = parts.port  # a number, or an error
    except ValueError as error:
        raise click.UsageError(f"--url {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise click.UsageError(f"--url {url!r}: write the address of a service, like https://api.example.com")
    whole = url if parts.path not in ("", "/") else parts._replace(path=path).geturl()
    try:
        with urlopen(Request(whole, headers={"accept": "application/json"}), timeout=TIMEOUT_S) as response:
            return _read(response.read(SIZE_MAX), whole)
    except (URLError, HTTPException, OSError, UnicodeError) as error:
        raise click.ClickException(f"{whole} cannot be read: {getattr(error, 'reason', error)}") from error


def load_app(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not colon or not name:
        raise click.UsageError(f"--app {place!r}: write MODULE:NAME, like shop.main:app")
    if "" not in sys.path:
        sys.path.insert(0, "")  # where the command was started, as servers do it
    try:
        app: Any = import_module(module)
        for part in name.split("."):
            app = getattr(app, part)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--app {place}: {error}") from error
    return app


def _from_app(place: str, path: str) -> dict[str, Any]:
    app = load_app(place)
    asgi = inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(getattr(app, "__call__", None))  # noqa: B004
    status, body = asyncio.run(_ask_asgi(app, path)) if asgi else _ask_wsgi(app, path)
    if status != 200:
        raise click.ClickException(
            f"{place} answers {status} for {path}: it is not protected by semel, or publish= says another path or None"
        )
    return _read(body, place)


async def _ask_asgi(app: Any, path: str) -> tuple[int, bytes]:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"accept", b"application/json")],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
    status, body = 0, b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    await app(scope, receive, send)
    return status, body


def _ask_wsgi(app: Any, path: str) -> tuple[int, bytes]:
    from wsgiref.util import setup_testing_defaults

    environ: dict[str, Any] = {"PATH_INFO": path, "HTTP_ACCEPT": "application/json", "wsgi.input": io.BytesIO()}
    setup_testing_defaults(environ)
    told: list[str] = []

    def start_response(status: str, headers: object, exc_info: object = None) -> Callable[[bytes], object]:
        told[:] = [status]
        return io.BytesIO().write

    answer = app(environ, start_response)
    body = b"".join(answer)
    if hasattr(answer, "close"):
        answer.close()
    return int(told[0].partition(" ")[0]), body


def _from_rules(path: Path) -> dict[str, Any]:
    try:
        from semel.gateway.rules import read_rules
    except ModuleNotFoundError as error:
        raise click.ClickException(f'--rules needs {error.name}: pip install "semel[gateway]"') from error
    try:
        found = read_rules(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return document(Gate(found.policy, found.rules, secret="not used: nothing is signed here"))


def _read(body: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise click.ClickException(f"{place} did not answer with JSON: {error}") from error
    if not isinstance(found, dict) or not {"headers", "key", "operations", "problems"} <= found.keys():
        raise click.ClickException(f"{place} did not answer with a policy document of semel")
    return found
