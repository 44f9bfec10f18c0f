"""The Django app: its migrations, its commands and its checks."""

from django.apps import AppConfig
from django.core import checks


class SemelConfig(AppConfig):
    name = "semel.django"
    label = "semel"
    verbose_name = "Idempotency keys"

    def ready(self) -> None:
        from semel.django.checks import check_configuration, check_store, check_views

        checks.register(check_configuration, checks.Tags.security)
        checks.register(check_views, checks.Tags.urls)
        checks.register(check_store, checks.Tags.database)
