"""What `semel doctor` says of both tiers. Nothing about the front is a problem: without it, the database answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from semel.errors import StoreError
from semel.store import Examinable, Finding, Fronting
from semel.stores.tiered.settings import TieredSettings


def examine(front: Fronting, back: object, settings: TieredSettings) -> Iterator[Finding]:
    if isinstance(back, Examinable):
        yield from back.examine()
    else:
        yield Finding("settings", "info", f"{type(back).__name__} does not tell more about itself")
    try:
        findings = front.examine_front()
    except StoreError as error:
        detail = f"{error}; replays come from the database, and no record can be removed or expired"
        yield Finding("front connection", "warning", detail, "see that the front runs and lets this machine in")
    else:
        for each in findings:
            level = "warning" if each.level == "problem" else each.level
            yield replace(each, title=f"front {each.title}", level=level)
    yield Finding(
        "front copies",
        "info",
        f"copies of {settings.name} live for up to {settings.keep_ms / 1000:g} s; what is removed or expired on the "
        "database's own URL may be answered from them for so long",
    )
