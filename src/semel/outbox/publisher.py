"""What publishes a message: one call for each broker, and how to find it by URL."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, cast, runtime_checkable

from semel.core.messages import Message
from semel.errors import BrokerMisconfigured
from semel.runtime.url import ServiceUrl

GROUP = "semel.publishers"
BUILT_IN: dict[str, tuple[str, str]] = {  # scheme: (module, extra)
    "amqp": ("semel.outbox.rabbitmq", "rabbitmq"),
    "amqps": ("semel.outbox.rabbitmq", "rabbitmq"),
    "nats": ("semel.outbox.nats", "nats"),
    "tls": ("semel.outbox.nats", "nats"),
    "redis": ("semel.outbox.redis", "redis"),
    "rediss": ("semel.outbox.redis", "redis"),
    "valkey": ("semel.outbox.redis", "redis"),
    "valkeys": ("semel.outbox.redis", "redis"),
    "http": ("semel.outbox.webhook", "webhooks"),
    "https": ("semel.outbox.webhook", "webhooks"),
    "sqs": ("semel.outbox.sqs", "sqs"),
    "sns": ("semel.outbox.sqs", "sqs"),
    "kafka": ("semel.outbox.kafka", "kafka"),
}


@runtime_checkable
class Publisher(Protocol):
    """What publishes the messages of an outbox to one broker. `open_publisher(url)` gives one."""

    async def publish(self, message: Message) -> None:
        """Return only after the broker confirmed the message. Many tasks may call it at once.

        Raises one of these. After each of them, publishing the message again with the same id is safe:

        - `BrokerUnavailable`: the broker did not confirm in time, and may have the message all the same. No attempt
          is counted.
        - `BrokerMisconfigured`: with these settings no message can be published. No attempt is counted.
        - `Poison`: the broker will never take this message. It belongs with the dead letters.
        - `NotPublished`, or any other error: an attempt of this message failed, and is counted.
        """
        ...

    async def close(self) -> None:
        """Give the connection back. Calling it twice does no harm; publishing afterwards raises `Misuse`."""
        ...


class BrokerUrl(ServiceUrl):
    what = "broker"
    examples = "amqp://host/vhost or nats://host"
    refusal = BrokerMisconfigured


Open = Callable[[BrokerUrl], Publisher]
"""What the module of a broker offers as `open_publisher`; an entry point of `semel.publishers` loads to it."""


def open_publisher(url: str) -> Publisher:
    """Open the publisher that `url` names, for a `Relay`. It connects on first use.

    There are `amqp://`, `nats://`, `redis://`, `http://`, `sqs://`, `sns://` and `kafka://`, each with an extra, and
    those that packages register in the entry point group `semel.publishers`. A misspelt option is an error.
    """
    parsed = BrokerUrl.parse(url)
    publisher = _find_open(parsed)(parsed)
    parsed.finish()
    return publisher


def _find_open(url: BrokerUrl) -> Open:
    scheme = url.parts.scheme
    if scheme in BUILT_IN:
        module, extra = BUILT_IN[scheme]
        try:
            return cast(Open, import_module(module).open_publisher)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "semel":
                raise
            raise BrokerMisconfigured(
                f"{url.shown}: needs {error.name}, which is not installed: pip install 'semel[{extra}]'"
            ) from None
    for entry in entry_points(group=GROUP, name=scheme):
        return cast(Open, entry.load())
    known = [*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))]
    near = get_close_matches(scheme, known, 1)
    way_out = f"did you mean {near[0]}://?" if near else f"there are {', '.join(known)}"
    raise BrokerMisconfigured(f"{url.shown}: there is no publisher for {scheme}://; {way_out}")
