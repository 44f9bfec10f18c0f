"""The tables of messages: the outbox, and how often a handler failed on a message."""

from django.db import migrations

from semel.django.schema import Apply


class Migration(migrations.Migration):
    dependencies = (("semel", "0001_records"),)
    operations = (Apply(2),)
