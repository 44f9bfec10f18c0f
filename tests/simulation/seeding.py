"""Seeds a fault into a module of semel as it is imported. Nothing is written; each fault has a process of its own."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from mutants.fault import Fault

PACKAGE = Path(__file__).parents[2] / "src" / "semel"


class Seeded(importlib.machinery.SourceFileLoader):
    """Loads one module, with the fault in it."""

    fault: Fault

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        return compile(source.replace(self.fault.old, self.fault.new), self.path, "exec")


class Seed(importlib.abc.MetaPathFinder):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._module = ".".join(("semel", *Path(fault.file).with_suffix("").parts))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        loader = Seeded(fullname, str(PACKAGE / self._fault.file))
        loader.fault = self._fault
        return importlib.util.spec_from_loader(fullname, loader)


def seed(fault: Fault) -> None:
    """From now on `semel` has the fault. It must not be imported yet, and the fault must fit."""
    if problem := fault.stale(PACKAGE):
        raise SystemExit(f"the fault cannot be seeded: {problem}")
    if "semel" in sys.modules:
        raise SystemExit("semel is imported already")
    sys.meta_path.insert(0, Seed(fault))
