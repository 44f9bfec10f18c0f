"""`manage.py semel_check`, for deployments: can the store be reached, are its tables there, what is in it?"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from semel.core.records import Key
from semel.django.checks import check_configuration, check_views
from semel.django.maintenance import add_store_argument, find_store
from semel.errors import StoreError
from semel.store import Inspectable


class Command(BaseCommand):
    help = "Check settings.SEMEL, the views' policies and the store, and show how many records there are."

    def add_arguments(self, parser: CommandParser) -> None:
        add_store_argument(parser)

    def handle(self, *args: Any, store: str | None, **options: Any) -> None:
        found = [*check_configuration(None), *check_views(None)]
        for message in found:
            self.stderr.write(str(message))
        if any(message.is_serious() for message in found):
            raise CommandError("the configuration has errors")
        try:
            records = find_store(store)
            records.get(Key("semel", "manage.py semel_check", "probe"))
            self.stdout.write("the store answers")
            if isinstance(records, Inspectable):
                counts = records.counts()
                about = "" if counts.exact else "about "
                self.stdout.write(
                    f"in progress {counts.in_progress}, unknown {counts.unknown}, "
                    f"{about}succeeded {counts.succeeded}, {about}failed {counts.failed}"
                )
                if counts.unreadable:
                    self.stderr.write(f"{about}{counts.unreadable} records cannot be read: their keys are refused")
        except (ImproperlyConfigured, StoreError) as error:
            raise CommandError(str(error)) from error
