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
    """Plays scenarios here, or, on Django, in a process that is kept."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._projects: dict[bool, subprocess.Popen[str]] = {}

    def play(self, scenario: str, mode: Mode, level: str, key: str, **options: Any) -> Any:
        if mode in DJANGO:
            project = self._project(with_mariadb=mode.database == "mariadb")
            return self._play_on_django(project, scenario, mode.name, level, key, options)
        return (SCENARIOS | MESSAGE_SCENARIOS)[scenario](mode, self._urls[mode.database], level, key, **options)

    def _play_on_django(self, project: subprocess.Popen[str], *part: object) -> Any:
        assert project.stdin is not None
        assert project.stdout is not None
        project.stdin.write(f"{json.dumps(part)}\n")
        project.stdin.flush()
        said: Mapping[str, Any] = json.loads(project.stdout.readline())
        assert "told" in said, said["failed"]
        return said["told"]

    def _project(self, *, with_mariadb: bool) -> subprocess.Popen[str]:
        """The other databases' scenarios are played also where there is no MariaDB."""
        if with_mariadb not in self._projects:
            self._projects[with_mariadb] = self._started(self._urls["mariadb"] if with_mariadb else "")
        return self._projects[with_mariadb]

    def _started(self, mariadb: str) -> subprocess.Popen[str]:
        urls = (self._urls["postgres"], self._urls["sqlite"], mariadb)
        command = [sys.executable, "-m", "transaction.scenarios", *urls]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS, env=environment
        )

    def close(self) -> None:
        for project in self._projects.values():
            project.communicate(timeout=PATIENCE_S)
