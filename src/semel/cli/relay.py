"""`semel relay`: publishes the messages of a store's outbox to a broker."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from semel.cli.messages import count_messages, outbox_of
from semel.cli.options import duration, open_existing, option
from semel.cli.output import seconds
from semel.core.events import Event, EventKind
from semel.errors import BrokerMisconfigured, StoreMisconfigured
from semel.outbox.settings import ATTEMPTS_MAX, BATCH_MAX, CONCURRENCY_MAX

if TYPE_CHECKING:
    from semel.outbox import Relay

logger = logging.getLogger("semel")


@click.command()
@click.argument("store", envvar=["SEMEL_RELAY_STORE", "SEMEL_STORE"], metavar="STORE")
@option("--to", required=True, metavar="URL", help="The broker, for example amqp://host/vhost or nats://host.")
@option(
    "--order",
    type=click.Choice(["key", "none"]),
    default="key",
    help="key: messages of one ordering key in the order in which they were added. none: each as soon as possible.",
)
@option("--batch", type=click.IntRange(1, BATCH_MAX), default=100, help="Take at most N messages at a time.")
@option(
    "--concurrency",
    type=click.IntRange(1, CONCURRENCY_MAX),
    default=100,
    help="Publish at most N messages at once.",
)
@option(
    "--lease",
    type=duration,
    metavar="DURATION",
    default="30s",
    help="How long this relay holds a batch. If it dies, another relay publishes the batch after that.",
)
@option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    help="How long the broker may take to confirm one message; 10s by default, and at most half of the lease.",
)
@option(
    "--attempts-max",
    type=click.IntRange(1, ATTEMPTS_MAX),
    default=10,
    help="A message that failed N times is dead. An outage does not count.",
)
@option("--dead-block", is_flag=True, help="A dead message keeps later messages of its key waiting.")
@option(
    "--keep", type=duration, metavar="DURATION", default="24h", help="How long published messages are kept, and listed."
)
@option(
    "--poll",
    type=duration,
    metavar="DURATION",
    default="1s",
    help="How often to look for messages, also if the database does not say that there are new ones.",
)
@option("--once", is_flag=True, help="Publish what can be published now, and exit.")
@option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus there. Keep it private.")
@option("--topic", "topics", multiple=True, help="A topic that has metrics of its own; may be repeated.")
@option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How log lines are written.")
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What is logged, on stderr. debug has a line for each message that was published.",
)
def relay(
    store: str,
    to: str,
    once: bool,
    metrics: str | None,
    topics: Sequence[str],
    log_format: str,
    log_level: str,
    timeout: timedelta | None,
    **options: Any,
) -> None:
    """Publish the messages of a store's outbox to a broker.

    Each message is published at least once, always with the same id. Any number of relays may work on one outbox.
    While the broker or the store is away, the relay pauses and counts no attempt. A message that the broker refuses for
    good, or that failed --attempts-max times, is dead: "semel outbox list --state dead" shows it, and why.

    With --once the command ends with 1 if the broker is away, and with 3 if the store is.

    \b
    Signals:
      SIGTERM, SIGINT   finish what is being published, give back the rest, exit
                        with 0

    \b
    Examples:
      semel relay postgresql://localhost/shop --to amqp://localhost/
      semel relay sqlite:///shop.db --to nats://localhost --metrics 127.0.0.1:9464
      semel relay postgresql://localhost/shop --to https://example.com/hooks --once
    """
    from semel.outbox import Relay

    outbox_of(opened := open_existing(store))
    _log_to_stderr(log_format, log_level)
    counted = RelayCount()
    if timeout is not None:
        options["timeout"] = timeout
    try:
        listener = counted if metrics is None else _serve_metrics(metrics, store, topics, counted)
        running = Relay(store, to, on_event=listener, **options)
    except (StoreMisconfigured, BrokerMisconfigured, ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    logger.info("publishing messages of %s, lease %s", opened.shown, seconds(options["lease"]))
    try:
        asyncio.run(_run(running, once=once))
    finally:
        logger.info("ended: %s published, %d dead", count_messages(counted.published), counted.dead)


async def _run(relay: Relay, *, once: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, relay.stop)
    async with relay:
        await (relay.publish_waiting() if once else relay.run())


class RelayCount:
    """Counts what the last line of the log says."""

    def __init__(self) -> None:
        self.published = self.dead = 0

    def __call__(self, event: Event) -> None:
        self.published += event.kind is EventKind.MESSAGE_PUBLISHED
        self.dead += event.kind is EventKind.MESSAGE_DEAD


def _serve_metrics(place: str, store: str, topics: Sequence[str], counted: RelayCount) -> Any:
    """Serve metrics from a thread, and return the listener that counts for them."""
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"--metrics: {place!r} is not HOST:PORT")
    try:
        from prometheus_client import start_http_server

        from semel.telemetry.prometheus import OutboxCollector, PrometheusListener
    except ModuleNotFoundError as error:
        raise click.ClickException(f"--metrics needs {error.name}: pip install 'semel[prometheus]'") from None
    from semel.telemetry import Listeners

    OutboxCollector(store)
    listener = PrometheusListener(front="relay", operations=topics)
    try:
        start_http_server(int(port), host.strip("[]"))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {place}: {error}; choose another --metrics") from None
    return Listeners(counted, listener)


def _log_to_stderr(form: str, level: str) -> None:
    """Lines as those of the gateway: repeated warnings of one kind are summed, but for debug."""
    from semel.gateway.logs import JsonLines, Sums, TextLines

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    if level != "debug":
        handler.addFilter(Sums())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logger.setLevel(level.upper())
