"""`semel gateway`: idempotency keys in front of any HTTP service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from semel.cli.options import option


@click.command()
@option("--upstream", required=True, metavar="URL", help="The service to protect: http://host:port or https://…")
@option(
    "--store",
    required=True,
    metavar="URL",
    envvar=["SEMEL_GATEWAY_STORE", "SEMEL_STORE"],
    help="Where keys are kept, for example sqlite:///semel.db.",
)
@option(
    "--listen",
    default="127.0.0.1:8080",
    metavar="HOST:PORT",
    help="Where callers connect; port 0 takes any free one. A socket that a service manager hands over (LISTEN_FDS) "
    "stands instead of it.",
)
@option(
    "--rules",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file: the policy, rules for single operations, and how tenants are identified. SIGHUP reads it again.",
)
@option("--admin", metavar="HOST:PORT", help="Serve /-/healthz, /-/readyz and /-/metrics there. Keep it private.")
@option("--workers", type=int, default=1, help="Worker processes. One that dies is replaced.")
@option(
    "--downstream-key",
    type=click.Choice(["derived", "caller", "none"]),
    default="derived",
    help="The Idempotency-Key that the upstream gets: one derived from tenant, operation and key, the same in every "
    "attempt; the caller's own; or none.",
)
@option(
    "--host",
    type=click.Choice(["caller", "upstream"]),
    default="caller",
    help="The Host header that the upstream gets: the one that the caller sent, or its own.",
)
@option(
    "--connect-timeout",
    type=float,
    default=5.0,
    metavar="SECONDS",
    help="Bound for connecting to the upstream. Nothing was sent: 502.",
)
@option(
    "--timeout",
    type=float,
    default=60.0,
    metavar="SECONDS",
    help="Bound for every wait for the upstream: until it takes a part of the request, for its answer, and between two "
    "parts of it. The outcome is unknown: 504.",
)
@option(
    "--keepalive",
    type=float,
    default=1.0,
    metavar="SECONDS",
    help="How long an idle connection to the upstream may be used again. It must be less than the upstream keeps it "
    "open; 0 makes a connection for each request.",
)
@option(
    "--head-timeout",
    type=float,
    default=10.0,
    metavar="SECONDS",
    help="Bound for the whole head of a request, from its first byte: 408.",
)
@option(
    "--body-timeout",
    type=float,
    default=30.0,
    metavar="SECONDS",
    help="Bound for the body of a request, to which every --body-rate bytes that arrive add one second: 408.",
)
@option(
    "--body-rate",
    type=int,
    default=1_000,
    metavar="BYTES",
    help="How many bytes a second a large body must bring on average.",
)
@option(
    "--idle-timeout",
    type=float,
    default=75.0,
    metavar="SECONDS",
    help="How long a caller's connection may be open without a request. It must be more than a proxy in front of the "
    "gateway keeps it.",
)
@option(
    "--send-timeout",
    type=float,
    default=60.0,
    metavar="SECONDS",
    help="How long a caller may take nothing of its answer. Linux only.",
)
@option(
    "--connections-max",
    type=int,
    default=10_000,
    metavar="N",
    help="Connections of callers at once, in each worker. A connection without a whole request gives way to a new one; "
    "where there is none, the new one gets 503.",
)
@option(
    "--drain",
    type=float,
    default=30.0,
    metavar="SECONDS",
    help="How long a stopping gateway, or the old workers of a restarted one, wait for running requests.",
)
@option(
    "--secret",
    metavar="TEXT",
    help="Keys the stored digests, and lets callers ask for a 202 (Prefer: respond-async). Better in the environment.",
)
@option(
    "--quota-storage",
    default="memory://",
    metavar="URL",
    help="Where quotas are counted. memory:// counts in each worker for itself, redis://… for all of them.",
)
@option(
    "--publish",
    default="/.well-known/idempotency",
    metavar="PATH",
    help="Where callers can read the policy; none does not publish it, and that path is the upstream's.",
)
@option(
    "--count-records/--no-count-records",
    default=True,
    help="Whether /-/metrics says how many records the store holds in each state. They are counted at most every 10 s.",
)
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How lines of the log are written, on stderr; text, unless the rules file has a [log] table.",
)
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What is logged; info, unless the rules file has a [log] table. Lines of one kind are summed, but for debug.",
)
def gateway(publish: str, **chosen: Any) -> None:
    """Put idempotency keys in front of any HTTP service.

    Requests with an Idempotency-Key take effect once, and repeats get the first answer. Everything else passes through.
    The upstream is never sent a request twice: if its answer is lost, the outcome is unknown, and repeats are told so.

    \b
    Signals:
      SIGTERM, SIGINT   stop accepting, finish what runs, exit with 0
      SIGHUP            read the rules again; a bad file keeps the old ones
      SIGUSR2           run this command again, in a new process on the same
                        socket, and let the old workers finish: no caller is
                        refused; if the new one fails, the old one stays

    \b
    Examples:
      semel gateway --upstream http://127.0.0.1:3000 --store sqlite:///semel.db
      semel gateway --upstream http://127.0.0.1:3000 --store postgresql://localhost/shop --rules semel.toml \\
                    --listen 0.0.0.0:8080 --admin 127.0.0.1:9090 --workers 4
    """
    if sys.platform == "win32":
        raise click.ClickException("semel gateway hands its socket to its workers, which needs Linux, macOS or WSL")
    try:
        from semel.gateway.succession import supervise
        from semel.gateway.supervisor import check_rules
    except ModuleNotFoundError as error:
        raise click.ClickException(f"semel gateway needs {error.name}: pip install 'semel[gateway]'") from None
    from semel.errors import StoreMisconfigured
    from semel.gateway.logs import GatewayLog
    from semel.gateway.settings import DURATIONS, GatewaySettings, SettingsInvalid

    log = GatewayLog()
    try:
        named = {f"{name}_s" if f"{name}_s" in DURATIONS else name: value for name, value in chosen.items()}
        settings = GatewaySettings(**named, publish=None if publish == "none" else publish)
        log.set(settings)
        rules = check_rules(settings, log)
        status = asyncio.run(supervise(settings, rules, log))
    except (SettingsInvalid, StoreMisconfigured) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(
            f"cannot listen: {error}; choose another --listen or --admin (SIGUSR2 restarts a gateway that runs there)"
        ) from None
    sys.exit(status)
