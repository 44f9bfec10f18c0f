"""Statements in the style of drivers that want `%(name)s`, or `%s`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from semel.stores.sql.statements import Statement

NUMBERED = re.compile(r"\$([0-9]+)")
NAMED = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


def for_sqlite(statement: Statement) -> Statement:
    """A statement written with `$n`, as one with `:pn`."""
    given = {f"p{number}": value for number, value in enumerate(statement.params, 1)}
    return Statement(NUMBERED.sub(r":p\1", statement.sql), given)


def named(statement: Statement) -> tuple[str, Mapping[str, Any]]:
    """The statement, written with `$n` or `:name`, with `%(name)s`."""
    sql = statement.sql.replace("%", "%%")
    if isinstance(statement.params, Mapping):
        return NAMED.sub(r"%(\1)s", sql), statement.params
    given = {f"p{number}": value for number, value in enumerate(statement.params, 1)}
    return NUMBERED.sub(r"%(p\1)s", sql), given


def positional(statement: Statement) -> tuple[str, tuple[Any, ...] | None]:
    """The statement, written with `$n`, with `%s`."""
    if not statement.params:
        return statement.sql, None
    assert not isinstance(statement.params, Mapping)
    params, sql = statement.params, statement.sql.replace("%", "%%")
    return NUMBERED.sub("%s", sql), tuple(params[int(number) - 1] for number in NUMBERED.findall(sql))
