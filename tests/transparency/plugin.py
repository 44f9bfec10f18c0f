"""A plugin for the pytest of the frameworks' own suites: puts applications behind semel, and writes down each outcome.

`SEMEL_TRANSPARENCY_ARM` names the front and its arm (`starlette.outermost`), or is `bare`. One line of JSON for each
test goes to the file that `SEMEL_TRANSPARENCY_OUTCOMES` names.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

from transparency.outcomes import ARM, BARE, OUTCOMES, Outcome, write
from transparency.trial import LEDGER


def install(arm: str) -> None:
    """Put the applications of this process behind semel, in the way that `arm` names."""
    if arm != BARE:
        front, _, function = arm.partition(".")
        getattr(import_module(f"transparency.fronts.{front}"), function)()


class Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        reports, self._reports = self._reports, []
        repeats, differences = LEDGER.take()
        bad = next((report for report in reports if report.failed), None)
        skipped = any(report.skipped for report in reports)
        result = "failed" if bad is not None else "skipped" if skipped else "passed"
        write(self._path, Outcome(nodeid, result, "" if bad is None else _reason(bad), repeats, differences))


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr))


def pytest_configure(config: pytest.Config) -> None:
    install(os.environ[ARM])
    config.pluginmanager.register(Recorder(Path(os.environ[OUTCOMES])), "semel-transparency")
