"""The store that the commands of `manage.py` look after."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from semel.django.front import front
from semel.errors import SemelError
from semel.stores.open import open_store


def add_store_argument(parser: CommandParser) -> None:
    parser.add_argument("--store", default=None, help='its URL, like django://default (settings.SEMEL["store"])')


def find_store(url: str | None) -> Any:
    """The store at `url`, else the one of the settings."""
    if url is not None:
        try:
            return open_store(url)
        except SemelError as error:
            raise CommandError(f"--store: {error}") from error
    if front().in_transactions:
        raise CommandError(
            'settings.SEMEL["store"] is a TransactionStore, which sees one request at a time: name the database that '
            "has its records, for example --store django://default"
        )
    return front().store
