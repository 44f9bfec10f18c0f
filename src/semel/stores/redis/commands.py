"""Commands as effects, and Lua scripts as plans of commands."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from semel.core.effects import Effect, Plan, do
from semel.errors import StoreMisconfigured, StoreUnavailable

Word = bytes | str | int


class ScriptMissing(StoreUnavailable):
    """The server does not have the script in its cache; nothing was done."""


class LoginRefused(StoreMisconfigured):
    """The server does not know the user, or not by this password."""


class Command(Effect[Any], frozen=True):
    """One Redis command. The reply is the driver's, in bytes."""

    words: tuple[Word, ...]


class Lua:
    """A script: the part that all share, and its own.

    One that the server does not have (first use, SCRIPT FLUSH, failover) did nothing, and is sent in full.
    """

    def __init__(self, *names: str) -> None:
        folder = files("semel.stores.redis") / "lua"
        self.text = "\n".join((folder / f"{part}.lua").read_text() for part in ("record", *names))
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def run(self, names: Sequence[bytes], words: Sequence[Word]) -> Plan[Any]:
        rest = (len(names), *names, *words)
        try:
            return (yield from do(Command(("EVALSHA", self.sha, *rest))))
        except ScriptMissing:
            return (yield from do(Command(("EVAL", self.text, *rest))))
