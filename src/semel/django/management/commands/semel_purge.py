"""`manage.py semel_purge`: delete records past retention. Run it regularly."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from semel.django.maintenance import add_store_argument, find_store
from semel.errors import StoreError


class Command(BaseCommand):
    help = "Delete records past retention, in batches that never keep requests waiting for long."

    def add_arguments(self, parser: CommandParser) -> None:
        add_store_argument(parser)
        parser.add_argument("--batch", type=int, default=1_000, help="how many to delete at a time (1000)")
        parser.add_argument("--limit", type=int, default=None, help="stop after this many (all)")

    def handle(self, *args: Any, batch: int, limit: int | None, store: str | None, **options: Any) -> None:
        if batch < 1 or (limit is not None and limit < 0):
            raise CommandError("--batch must be at least 1, --limit at least 0")
        records, purged = find_store(store), 0
        while limit is None or purged < limit:
            size = batch if limit is None else min(batch, limit - purged)
            try:
                gone = records.purge(limit=size)
            except StoreError as error:
                raise CommandError(f"{error} ({purged} records were purged before)") from error
            purged += gone
            if gone < size:
                break
        self.stdout.write(f"purged {purged} {'record' if purged == 1 else 'records'}")
