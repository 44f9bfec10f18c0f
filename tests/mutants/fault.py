"""A seeded fault: one textual change that some test of the contract must notice."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    breaks: str
    file: str
    """Below src/semel."""
    old: str
    """Must occur exactly so often, so that a fault never quietly stops being one."""
    new: str
    times: int = 1

    def stale(self, package: Path) -> str | None:
        """Why it cannot be seeded, if so."""
        count = (package / self.file).read_text().count(self.old)
        if count == self.times:
            return None
        return f"{self.breaks}: {self.old!r} occurs {count} times in {self.file}, not {self.times}"

    def seed(self, package: Path) -> None:
        file = package / self.file
        file.write_text(file.read_text().replace(self.old, self.new))
