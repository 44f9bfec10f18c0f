"""Every decision about a call is reported, also where the call is refused by an error."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import semel
from semel.events import Event, EventKind


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("fails", "fingerprint", "error", "kind"),
    [
        (False, "another", semel.KeyReused, EventKind.MISMATCHED),
        (True, "first", semel.OutcomeUnknown, EventKind.UNKNOWN),
    ],
)
def test_a_refusal_is_reported_once(
    is_async: bool, fails: bool, fingerprint: str, error: type[Exception], kind: EventKind
) -> None:
    events: list[Event] = []

    async def main() -> None:
        store = semel.open_async_store("memory://")

        async def call(fingerprint: str) -> None:
            block = semel.operation(
                "k", scope="charge", store=store, fingerprint=fingerprint, returns=int, on_event=events.append
            )
            async with block as op:
                assert not op.replayed
                if fails:
                    raise OSError("on purpose")
                op.result = 1

        with contextlib.suppress(OSError):
            await call("first")
        events.clear()
        with pytest.raises(error):
            await call(fingerprint)

    def in_thread() -> None:
        store = semel.open_store("memory://")

        def call(fingerprint: str) -> None:
            block = semel.operation(
                "k", scope="charge", store=store, fingerprint=fingerprint, returns=int, on_event=events.append
            )
            with block as op:
                assert not op.replayed
                if fails:
                    raise OSError("on purpose")
                op.result = 1

        with contextlib.suppress(OSError):
            call("first")
        events.clear()
        with pytest.raises(error):
            call(fingerprint)

    asyncio.run(main()) if is_async else in_thread()
    assert [event.kind for event in events] == [kind]
