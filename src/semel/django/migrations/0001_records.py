"""The table of records, and the table of applied migrations that all SQL stores share."""

from django.db import migrations

from semel.django.schema import Apply


class Migration(migrations.Migration):
    initial = True
    operations = (Apply(1),)
