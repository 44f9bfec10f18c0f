"""`semel migrate`."""

from __future__ import annotations

import click

from semel.cli.options import OpenedStore, json_option, new_store_option, option
from semel.cli.output import print_json
from semel.store import Migratable


@click.command()
@new_store_option
@option("--sql", is_flag=True, help="Only print the SQL, without connecting to the store.")
@json_option
def migrate(store: OpenedStore, sql: bool, json: bool) -> None:
    """Create or upgrade the tables of a store.

    Run it once before a new version starts, with a database user that may create tables. Running it twice, or at
    once from two places, does no harm. Versions N and N-1 of semel can use the same tables.

    \b
    Examples:
      semel migrate --store postgresql://owner@localhost/shop
      semel migrate --store postgresql://localhost/shop --sql | psql shop
    """
    if sql and json:
        raise click.UsageError("Give only one of --sql and --json.")
    opened = store.store
    if not isinstance(opened, Migratable):
        if json:
            print_json({"action": "migrate", "applied": [], "schema": None})
            return
        click.echo(f"{store.shown} has no tables: there is nothing to migrate.", err=sql)
        return
    if sql:
        for migration in opened.migrations():
            click.echo(f"-- migration {migration.number}: {migration.title}")
            for statement in migration.statements:
                click.echo(f"{statement};")
        return
    titles = {migration.number: migration.title for migration in opened.migrations()}
    applied = opened.migrate()
    if json:
        told = [{"number": number, "title": titles[number]} for number in applied]
        print_json({"action": "migrate", "applied": told, "schema": max(titles, default=0)})
        return
    for number in applied:
        click.echo(f"Applied migration {number}: {titles[number]}.")
    if not applied:
        click.echo(f"{store.shown} is up to date (schema {max(titles, default=0)}).")
