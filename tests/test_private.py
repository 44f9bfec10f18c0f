"""What other packages keep to themselves is used in the `driver.py` of a store, or listed here with the reason.

A name with an underscore may change with any release. Ours may be used by the class or the module that defines it; what
is read through `self` must be defined somewhere in semel, or it is inherited from somebody else.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "semel"
DOCUMENTED = {
    "_replace": "of named tuples",
    "_fields": "of named tuples",
    "_exit": "of os",
    "_request": "Django's request in one of Django REST framework",
}
DRIVERS = ("stores/postgres/driver.py", "stores/mariadb/driver.py")
"""These say at their top what they use, bound the version of the package, and can do without."""
ALLOWED = {
    ("stores/django/driver.py", "_from_testcase"): "Django marks only here the transaction that a TestCase opens",
    ("django/streams.py", "_resource_closers"): "Django: what the first response holds is closed with the one instead",
    ("django/exchange.py", "_resource_closers"): "Django: as above",
    ("django/wire.py", "_read_started"): "Django: whether the body was touched",
    ("django/wire.py", "_body"): "Django: where a body that was read within a limit is left for the view",
    ("django/wire.py", "_stream"): "Django: as above",
    (
        "gateway/deadlines.py",
        "_unset_keepalive_if_required",
    ): "uvicorn: its timer for idle connections has no other stop",
    ("gateway/http1.py", "_unset_keepalive_if_required"): "uvicorn: as above",
    ("cli/options.py", "_describe_range"): "click: its own words for a range, in an error that it does not raise",
    ("litestar.py", "_internal"): "Litestar: its handler of exceptions has no public name",
}


def private_uses(source: str, elsewhere: set[str]) -> set[str]:
    """The private names in a module that are neither its own nor, through `self`, those of another module of semel."""
    tree = ast.parse(source)
    here = defined_in(tree)
    known = {"self": here | elsewhere, "super": elsewhere, "other": here}
    return {
        name
        for name, owner in _uses(tree)
        if name.startswith("_") and not name.startswith("__") and name not in known[owner]
    }


def defined_in(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                names.add(node.attr)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case _:
                pass
    return names


def _uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that are looked up in something, and whether that is `self`, `super()` or another thing."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                yield node.attr, "self"
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                yield node.attr, "super"
            case ast.Attribute():
                yield node.attr, "other"
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, ast.Constant(), *_]
            ):
                yield str(node.args[1].value), "other"  # type: ignore[attr-defined]  # it is a constant
            case ast.ImportFrom(module=str(module)) if not module.startswith("semel"):
                yield from ((part, "other") for part in (*module.split("."), *(alias.name for alias in node.names)))
            case ast.Import():
                yield from ((part, "other") for alias in node.names for part in alias.name.split("."))
            case _:
                pass


@cache
def _found() -> set[tuple[str, str]]:
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    defined = {path: defined_in(ast.parse(source)) for path, source in sources.items()}
    counts = Counter(name for names in defined.values() for name in names if name.startswith("_"))
    return {
        (path, name)
        for path, source in sources.items()
        if path not in DRIVERS
        for name in private_uses(source, set(counts - Counter(defined[path]))) - set(DOCUMENTED)
    }


def test_private_names_of_others_are_used_in_drivers_or_listed() -> None:
    assert sorted(_found() - set(ALLOWED)) == []


def test_the_list_names_nothing_that_is_gone() -> None:
    assert sorted(set(ALLOWED) - _found()) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("connection._writer.close()", "_writer"),
        ("self._unheard_of()", "_unheard_of"),
        ("def _overridden(self): super()._overridden()", "_overridden"),
        ("getattr(connection, '_parser')", "_parser"),
        ("from psycopg._queries import PostgresQuery", "_queries"),
        ("from psycopg.errors import _WaitTimeout", "_WaitTimeout"),
        ("import redis._parsers", "_parsers"),
        ("self.store._known()", "_known"),
    ],
)
def test_a_private_name_is_seen(line: str, name: str) -> None:
    assert private_uses(line, {"_known"}) == {name}


@pytest.mark.parametrize(
    "line", ["self._known()", "connection.close()", "value.__class__", "self._mine = 1; other._mine", "_local = 1"]
)
def test_our_own_names_are_fine(line: str) -> None:
    assert private_uses(line, {"_known", "_mine"}) == set()
