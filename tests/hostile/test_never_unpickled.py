"""Stored data is decoded as data: nothing in the package can turn bytes into code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib", "yaml"}
BUILTINS = {"eval", "exec", "compile", "__import__"}


def dangers(source: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                found.append(module)
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
                found.append(name)
            case ast.Constant(value=str(text)) if text in MODULES - {"yaml"}:  # import_module("pickle")
                found.append(text)
            case _:
                pass
    return found


def test_the_package_cannot_execute_what_it_reads() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 100
    found = {str(path.relative_to(SOURCE)): dangers(path.read_text()) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "def f():\n    import dill as data",
        "eval('1')",
        "from importlib import import_module\nimport_module('pickle')",
        "import yaml\nyaml.load(x)",
    ],
)
def test_it_would_be_found(source: str) -> None:
    assert dangers(source)
