"""`manage.py semel_check`, for deployments: can the store be reached, are its tables there, what is in it?"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from semel.core.records import Key
from semel.django.checks import check_configuration, check_views
from semel.django.front import front
from semel.errors import StoreError
from semel.store import Inspectable


class Command(BaseCommand):
    help = "Check settings.SEMEL, the views' policies and the store, and show how many records there are."

    def handle(self, *args: Any, **options: Any) -> None:
        found = [*check_configuration(None), *check_views(None)]
        for message in found:
            self.stderr.write(str(message))
        if any(message.is_serious() for message in found):
            raise CommandError("the configuration has errors")
        try:
            store = front().store
            store.get(Key("semel", "manage.py semel_check", "probe"))
            self.stdout.write("the store answers")
            if isinstance(store, Inspectable):
                counts = store.counts()
                about = "" if counts.exact else "about "
                self.stdout.write(
                    f"in progress {counts.in_progress}, unknown {counts.unknown}, "
                    f"{about}succeeded {counts.succeeded}, {about}failed {counts.failed}"
                )
                if counts.unreadable:
                    self.stderr.write(f"{about}{counts.unreadable} records cannot be read: their keys are refused")
        except (ImproperlyConfigured, StoreError) as error:
            raise CommandError(str(error)) from error
