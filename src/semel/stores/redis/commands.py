"""Commands as effects, and Lua scripts as plans of commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from semel.core.effects import Effect, Plan, do
from semel.errors import StoreMisconfigured, StoreUnavailable

Word = bytes | str | int
Address = tuple[str, int]


class ScriptMissing(StoreUnavailable):
    """The server does not have the script in its cache; nothing was done."""


class LoginRefused(StoreMisconfigured):
    """The server does not know the user, or not by this password."""


class Unreached(StoreUnavailable):
    """There was no connection to the server; nothing was sent, so nothing was done."""


class Command(Effect[Any], frozen=True):
    """One Redis command. The reply is the driver's, in bytes."""

    words: tuple[Word, ...]
    key: bytes = b""
    """Where the data is that it is about, if there are several servers."""
    node: Address | None = None
    """The server that it is for, whatever its key."""
    confirms: Callable[[Any], bool] | None = None
    """Whether such a reply counts only when replicas have what it tells, if they are waited for."""


class Together(Effect[list[Any]], frozen=True):
    """Commands that need not wait for each other. For each its reply, or the `StoreError` that it ended with."""

    commands: tuple[Command, ...]


class Node(NamedTuple):
    """A server that takes writes, for the records in `slots`: bit n stands for slot n."""

    name: str
    """Another server, or the same data on another one, has another name."""
    slots: int
    address: Address | None


class Nodes(Effect[tuple[Node, ...]], frozen=True):
    """Asks for the servers that have all records between them."""


def has_changed(reply: Any) -> bool:
    """Whether a script that writes did, or says again to the same owner that it has: then its replicas must have it."""
    if isinstance(reply, list):
        return any(isinstance(each, list) or each == 1 for each in reply[1:])
    return bool(reply) and not isinstance(reply, Exception)


def has_found(reply: Any) -> bool:
    """Whether a script that reads found a record. It may be one whose own write was not confirmed."""
    return isinstance(reply, list) and any(isinstance(each, bytes) for each in reply[1:])


class Lua:
    """A script: the part that all share, and its own.

    One that the server does not have (first use, SCRIPT FLUSH, failover) did nothing, and is sent in full.
    """

    def __init__(self, *names: str, confirms: Callable[[Any], bool] | None = None) -> None:
        folder = files("semel.stores.redis") / "lua"
        self._confirms = confirms
        self.text = "\n".join((folder / f"{part}.lua").read_text() for part in ("record", *names))
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def run(self, names: Sequence[bytes], words: Sequence[Word]) -> Plan[Any]:
        rest, key = (len(names), *names, *words), names[0] if names else b""
        try:
            return (yield from do(Command(("EVALSHA", self.sha, *rest), key, confirms=self._confirms)))
        except ScriptMissing:
            return (yield from do(Command(("EVAL", self.text, *rest), key, confirms=self._confirms)))
