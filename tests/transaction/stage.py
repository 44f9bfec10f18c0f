"""Where scenarios are played: in this process, or, on Django, in a project of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transaction.message_scenarios import MESSAGE_SCENARIOS
from transaction.modes import DJANGO, Mode
from transaction.scenarios import PATIENCE_S, SCENARIOS

TESTS = Path(__file__).parents[1]


class Stage:
    """Plays scenarios here, or, on Django, in one process for all of them."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._project: subprocess.Popen[str] | None = None

    def play(self, scenario: str, mode: Mode, level: str, key: str, **options: Any) -> Any:
        if mode in DJANGO:
            return self._play_on_django(scenario, mode.name, level, key, options)
        return (SCENARIOS | MESSAGE_SCENARIOS)[scenario](mode, self._urls[mode.database], level, key, **options)

    def _play_on_django(self, *part: object) -> Any:
        self._project = self._project or self._started()
        assert self._project.stdin is not None
        assert self._project.stdout is not None
        self._project.stdin.write(f"{json.dumps(part)}\n")
        self._project.stdin.flush()
        said: Mapping[str, Any] = json.loads(self._project.stdout.readline())
        assert "told" in said, said["failed"]
        return said["told"]

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "transaction.scenarios", self._urls["postgres"], self._urls["sqlite"]]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS, env=environment
        )

    def close(self) -> None:
        if self._project is not None:
            self._project.communicate(timeout=PATIENCE_S)
