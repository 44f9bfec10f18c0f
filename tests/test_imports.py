"""Imports point one way."""

import subprocess
import sys
from pathlib import Path

import pytest

from import_rules import violations

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted(SOURCE.glob("semel/**/*.py"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_of(path: Path) -> None:
    found = violations(dotted(path), path.read_text(), package=path.name == "__init__.py")
    assert not found, "\n".join(found)


FORBIDDEN = [
    ("semel.core.model", "import time"),
    ("semel.core.model", "from os import path"),
    ("semel.core.model", "def now():\n    import time"),
    ("semel.core.model", "import psycopg"),
    ("semel.core.model", "from semel.store import Store"),
    ("semel.core.model", "from .. import runtime"),
    ("semel.stores.memory", "from semel.asgi import Rule"),
    ("semel.stores.sql.script", "from semel import inbox"),
    ("semel.stores.redis.store", "from ...functions import idempotent"),
    ("semel.asgi", "from semel.stores.memory import MemoryStore"),
    ("semel.gateway.main", "from semel import stores"),
    ("semel.client.retry", "def store():\n    from semel.stores.sqlite import SqliteStore"),
    ("semel.store", "import semel.testing"),
    ("semel.dashboard.app", "from semel.cli import main"),
    ("semel.store", "import psycopg"),
    ("semel.stores.postgres.store", "import redis"),
    ("semel.stores.memory", "class Store:\n    import redis"),
]

ALLOWED = [
    ("semel.core.model", "import hashlib\nfrom dataclasses import dataclass"),
    ("semel.core.model", "from semel.core.records import Key\nfrom . import tables"),
    ("semel.core.model", "from semel.errors import NotExecuted\nimport semel.core.events"),
    ("semel.codecs.values", "import msgspec"),
    ("semel.store", "def connect():\n    import psycopg"),
    ("semel.store", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import redis"),
    ("semel.stores.postgres.store", "import psycopg\nfrom psycopg import sql"),
    ("semel.testing.contract", "import pytest\nfrom hypothesis import given\nfrom semel.testing import races"),
    ("semel.store", "from semel.stores.memory import MemoryStore"),
]


@pytest.mark.parametrize(("module", "source"), FORBIDDEN)
def test_finds_what_is_forbidden(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(("module", "source"), ALLOWED)
def test_lets_pass_what_is_allowed(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_relative_imports_of_a_package_start_in_the_package() -> None:
    assert violations("semel.stores", "from .. import asgi", package=True)
    assert not violations("semel.core", "from . import tables", package=True)


def test_a_transaction_on_postgresql_needs_no_driver_of_ours() -> None:
    """asyncpg, SQLAlchemy or Django may be all that a user has."""
    code = (
        "import sys; sys.modules['psycopg'] = None; import semel.stores.postgres.transaction, semel.connections.asyncpg"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
