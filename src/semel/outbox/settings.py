"""The options of a relay, checked: each error names the option, its limit, and the way out."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict, get_args

from semel.core.records import DURATION_MS_MAX
from semel.core.relay import Order, RelaySettings
from semel.runtime.listener import OnEvent, ignore

Duration = timedelta | float
BATCH_MAX, CONCURRENCY_MAX, ATTEMPTS_MAX = 1_000, 1_000, 1_000
LEASE_MIN_MS, LEASE_MAX_MS = 100, 3_600_000
TIMEOUT_MS = 10_000
"""The default of `timeout`; it is half of a lease that is shorter than twice this."""
POLL_MIN_MS, POLL_MAX_MS = 10, 60_000


class RelayOptions(TypedDict, total=False):
    """How a relay works. Durations are `timedelta` or seconds."""

    order: Order
    """`"key"`: messages of one key in the order in which they were added. `"none"`: each as soon as possible."""
    batch: int
    """How many messages are taken at a time."""
    lease: Duration
    """How long the relay holds a batch. If the relay dies, another one publishes it after that."""
    timeout: Duration
    """How long the broker may take to confirm one message. Ten seconds by default, and at most half of the lease."""
    attempts_max: int
    """A message that failed so often is a dead letter. While the broker is away no attempt is counted."""
    dead_block: bool
    """Whether a dead message keeps later messages of its key waiting, until it is redriven or discarded."""
    keep: Duration
    """How long published messages are kept. A message that is added again meanwhile, under its id, is not published
    again."""
    poll: Duration
    """How often to look for messages, also if the database does not say that there are new ones."""
    concurrency: int
    """How many messages are published at once."""
    on_event: OnEvent
    """Is called with an `Event` for each message that was published, has failed or is dead, and for each pause."""


def check_relay_options(
    *,
    order: Order = "key",
    batch: int = 100,
    lease: Duration = timedelta(seconds=30),
    timeout: Duration | None = None,
    attempts_max: int = 10,
    dead_block: bool = False,
    keep: Duration = timedelta(days=1),
    poll: Duration = timedelta(seconds=1),
    concurrency: int = 100,
    on_event: OnEvent = ignore,
) -> tuple[RelaySettings, int, OnEvent]:
    """The settings for the relay's plan, the concurrency and the listener; here are the defaults of the options."""
    if order not in get_args(Order):
        raise ValueError(f'order= must be "key" or "none", not {order!r}')
    if dead_block and order == "none":
        raise ValueError('dead_block=True would have no effect with order="none": use order="key", or leave it out')
    lease_ms = _duration("lease", lease, LEASE_MIN_MS, LEASE_MAX_MS)
    timeout_ms = min(TIMEOUT_MS, lease_ms // 2) if timeout is None else _duration("timeout", timeout, 1, LEASE_MAX_MS)
    if 2 * timeout_ms > lease_ms:
        raise ValueError(
            f"lease={lease_ms / 1000:g} s must be at least twice timeout={timeout_ms / 1000:g} s: a message that the "
            "broker has not confirmed when the lease ends is published by another relay, too"
        )
    settings = RelaySettings(
        order=order,
        batch=_count("batch", batch, BATCH_MAX),
        lease_ms=lease_ms,
        timeout_ms=timeout_ms,
        attempts_max=_count("attempts_max", attempts_max, ATTEMPTS_MAX),
        dead_block=dead_block,
        keep_ms=_duration("keep", keep, 0, DURATION_MS_MAX),
        poll_ms=_duration("poll", poll, POLL_MIN_MS, POLL_MAX_MS),
    )
    return settings, _count("concurrency", concurrency, CONCURRENCY_MAX), on_event


def _count(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}= must be a number, not {value!r}")
    if not 1 <= value <= most:
        raise ValueError(f"{name}= must be between 1 and {most}, not {value}")
    return value


def _duration(name: str, value: object, least_ms: int, most_ms: int) -> int:
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise TypeError(f"{name}= must be a timedelta or a number of seconds, not {value!r}")
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not least_ms / 1000 <= seconds <= most_ms / 1000:
        raise ValueError(f"{name}= must be between {least_ms / 1000:g} and {most_ms / 1000:g} s, not {seconds:g} s")
    return round(seconds * 1000)
