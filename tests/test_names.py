"""One name, one meaning: class names, module names and the modules at the root of the package."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "semel"
MODULES = sorted(SOURCE.rglob("*.py"))
ROOT_MAX = 12  # faststream.py: a framework that a user names
"""A module at the root is something that a user imports. Everything else has a room."""

SAME_ON_PURPOSE = {
    "AsyncIdempotentTransport": "The name that users import, from the module of their library.",
    "Command": "Django wants this name for every management command.",
    "IdempotentTransport": "The name that users import, from the module of their library.",
    "IdempotencyMiddleware": "The name that users import, from the package of their framework.",
    "Migration": "Django wants this name in its migrations; `semel.store.Migration` is public.",
    "Superseded": "The error is public, and the decision that raises it has its name.",
}

NO_PARTICIPLE = {
    "gateway.seed": "A noun: the process that workers are forked from.",
    "stores.batching": "A noun of the design: many calls in one round trip.",
    "stores.paging": "A noun of the design: lists, page by page.",
    "transaction.binding": "A noun: a store bound to your transaction.",
    "codecs.sealed": "A documented import path: `from semel.codecs.sealed import Sealed`.",
}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def doubles() -> dict[str, list[str]]:
    """The names of classes that several modules define, and those modules."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(dotted(path))
    return {name: where for name, where in found.items() if len(set(where)) > 1}


def test_a_class_name_has_one_meaning() -> None:
    found = doubles()
    new = {name: where for name, where in found.items() if name not in SAME_ON_PURPOSE}
    assert not new, f"rename one of each, to say more precisely what it is: {new}"


def test_the_lists_of_class_names_are_up_to_date() -> None:
    stale = sorted(SAME_ON_PURPOSE.keys() - doubles().keys())
    assert not stale, f"these names stand for one class now: remove them from SAME_ON_PURPOSE: {stale}"


def test_module_names_are_nouns() -> None:
    found = {dotted(path) for path in MODULES if path.stem.endswith(("ing", "ed"))}
    new = sorted(found - NO_PARTICIPLE.keys())
    assert not new, f"name these modules after what they hold: {new}"
    stale = sorted(NO_PARTICIPLE.keys() - found)
    assert not stale, f"these modules are gone: remove them from NO_PARTICIPLE: {stale}"


def test_modules_at_the_root_are_few() -> None:
    found = sorted(path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__")
    assert len(found) <= ROOT_MAX, f"give one of these a room: {found}"


def imported_as(path: Path) -> str:
    """What pytest calls a module of tests: by its packages, or by its own name alone where the folder is none."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def test_each_module_of_tests_has_a_name_of_its_own() -> None:
    """Two of one name end the whole run before its first test, and nothing that runs one of them alone."""
    names = Counter(imported_as(path) for path in Path(__file__).parent.rglob("test_*.py"))
    double = [name for name, count in names.items() if count > 1]
    assert not double, f"rename one of each, or make its folder a package: {double}"
