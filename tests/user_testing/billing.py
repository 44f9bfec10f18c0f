"""Work behind a key, without HTTP: what the how-to's test of a real kill bills with."""

from __future__ import annotations

import secrets
from pathlib import Path

from semel import Policy, Result, Store
from semel.core.decisions import Run, Unknown
from semel.core.protocol import acquire, settle
from semel.core.records import Key
from semel.core.tables import Ending
from semel.runtime.drive import drive
from semel.runtime.perform import performer


def send_invoice(ledger: Path) -> None:
    with ledger.open("a") as file:
        file.write("sent\n")


def bill(store: Store, invoice: str, ledger: Path) -> str:
    policy, perform = Policy(), performer(store)
    decision = drive(acquire(Key("", "billing", invoice), "v1:bill", secrets.token_urlsafe(16), policy), perform)
    if isinstance(decision, Unknown):
        return "unknown"
    assert isinstance(decision, Run)
    send_invoice(ledger)
    drive(settle(decision.lease, Ending.SUCCEEDED, Result("text", b"sent"), policy, fingerprint="v1:bill"), perform)
    return "sent"
