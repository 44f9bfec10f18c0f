"""What an editor shows: every public name says what it promises, every option has its type, every example runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

import semel
from semel.core.policy import Policy
from semel.core.policy_values import PolicyFields

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semel"
PUBLIC = """
    semel semel.asgi semel.wsgi semel.django semel.django.asgi semel.django.drf semel.fastapi semel.flask semel.litestar
    semel.quart semel.faststream semel.functions semel.transaction semel.database semel.flow semel.inbox
    semel.inbox.rabbitmq semel.inbox.nats semel.inbox.redis semel.inbox.webhook semel.outbox semel.client
    semel.client.httpx semel.client.httpx2 semel.client.requests semel.client.urllib3 semel.client.aiohttp
    semel.client.discovery semel.testing semel.conditional semel.watermark semel.codecs.sealed semel.telemetry
    semel.telemetry.prometheus semel.telemetry.opentelemetry semel.purger semel.store semel.errors semel.gateway
""".split()
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_OURS = {
    "semel.django.drf.IdempotentMixin": "Its methods have the arguments of Django REST framework's own.",
    "semel.client.urllib3.IdempotentPoolManager": "Its arguments are those of urllib3's PoolManager.",
}
"""Public names that take any keyword argument, because another library decides what they are."""
DESCRIBED_AT_THE_STORE = {member for member, call in vars(semel.Store).items() if getattr(call, "__doc__", None)}
"""A store around another one does what `Store` says of these calls."""


def exported(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public classes and functions of a module, by `__all__` or else by where they are defined."""
    for name in getattr(module, "__all__", vars(module)):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or name.startswith("_"):
            continue
        if hasattr(module, "__all__") or value.__module__ == module.__name__:
            yield f"{module.__name__}.{name}", value


def documented() -> dict[str, Any]:
    """Each public name once, where a user finds it first."""
    found: dict[int, tuple[str, Any]] = {}
    for module in PUBLIC:
        for name, value in exported(importlib.import_module(module)):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def undocumented(name: str, value: Any) -> Iterator[str]:
    own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    if not own or own.startswith(f"{value.__name__}("):  # what a dataclass makes up
        yield name
    if inspect.isclass(value):
        for member, given in vars(value).items():
            described = member in DESCRIBED_AT_THE_STORE or inspect.getdoc(getattr(value, member)) or is_of_twin(name)
            if not member.startswith("_") and is_code(given) and not described:
                yield f"{name}.{member}"


def is_of_twin(name: str) -> bool:
    """The methods of an async class say nothing where those of its sync twin do."""
    module, _, kind = name.rpartition(".")
    return kind.startswith("Async") and hasattr(importlib.import_module(module), kind.removeprefix("Async"))


def is_code(member: object) -> bool:
    if isinstance(member, staticmethod | classmethod):
        return True
    return inspect.isfunction(member) or isinstance(member, property | cached_property)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_module_says_what_it_is_for(module: str) -> None:
    assert importlib.import_module(module).__doc__


def test_every_public_name_has_a_docstring() -> None:
    missing = [each for name, value in documented().items() for each in undocumented(name, value)]
    assert not missing, f"say in one sentence what each promises: {missing}"


def test_a_missing_docstring_is_found() -> None:
    class Silent:
        def work(self) -> None: ...

    assert list(undocumented("semel.Silent", Silent)) == ["semel.Silent", "semel.Silent.work"]


def test_every_field_of_the_policy_has_a_text_for_editors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    texts: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["field_texts"](Policy)
    assert [field.name for field in fields(Policy)] == list(texts)


def test_the_presets_take_every_field_of_the_policy() -> None:
    hints = get_type_hints(Policy)
    assert get_type_hints(PolicyFields) == {field.name: hints[field.name] for field in fields(Policy)}


def test_no_public_signature_takes_anything() -> None:
    """`**options: Any` hides from an editor, and from a type checker, what may be given."""
    found = {
        name for name, value in documented().items() for each in signatures(value) if "**" in each and "Any" in each
    }
    assert found == NOT_OURS.keys()


def signatures(value: Any) -> Iterator[str]:
    """The last parameter of a function, or of each public method of a class, as it is written."""
    members = [each for name, each in vars(value).items() if not name.startswith("_") or name == "__init__"]
    for each in members if inspect.isclass(value) else [value]:
        function = each.__func__ if isinstance(each, staticmethod | classmethod) else each
        if inspect.isfunction(function):
            kinds = [each for each in inspect.signature(function).parameters.values() if each.kind is each.VAR_KEYWORD]
            yield from map(str, kinds)


def test_help_teaches() -> None:
    """`help(semel)` begins with an example, and says where each front is."""
    text = inspect.getdoc(semel)
    assert text is not None
    assert "```python" in text
    for front in "asgi wsgi django fastapi flask litestar quart transaction flow inbox outbox client testing".split():
        assert f"semel.{front}" in text


def examples() -> Iterator[tuple[str, str]]:
    """The blocks of Python in the docstrings of the source, each with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "```python" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    for block in FENCE.findall(inspect.cleandoc(node.value)):
                        yield f"{path.relative_to(SOURCE)}:{node.lineno}", block


EXAMPLES = list(examples())


@pytest.mark.parametrize(("place", "example"), EXAMPLES, ids=[place for place, _ in EXAMPLES])
def test_examples_in_docstrings_run(place: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # frameworks read annotations there
    exec(compile(example, place, "exec"), vars(module))
