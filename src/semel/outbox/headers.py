"""The headers that publishers add to a message's own, under the names that consumers read."""

from __future__ import annotations

from collections.abc import Mapping

from semel.core.messages import Message

ID, KEY, TOPIC, CONTENT_TYPE = "semel-id", "semel-key", "semel-topic", "content-type"


def pack_headers(
    message: Message, native: Mapping[str, str] | None = None, *, topic: bool = False, content_type: bool = True
) -> dict[str, str]:
    """The message's headers, and what belongs to it where the broker has no place of its own for that.

    `native` are headers of the broker itself. What is added wins, in whatever case the message wrote its own.
    """
    added = {**(native or {}), ID: message.id}
    if message.key is not None:
        added[KEY] = message.key
    if topic:
        added[TOPIC] = message.topic
    if content_type:
        added[CONTENT_TYPE] = message.content_type
    taken = {name.lower() for name in added} | {KEY}
    return {**{name: value for name, value in message.headers.items() if name.lower() not in taken}, **added}
