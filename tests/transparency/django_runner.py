"""Settings and test runner for Django's own suite, which is not pytest's: `runtests.py --settings=…`.

It writes the same lines as the plugin.
"""

from __future__ import annotations

import os
import unittest
from pathlib import Path
from typing import Any

from django.test.runner import DiscoverRunner

from transparency.outcomes import ARM, OUTCOMES, Outcome, write
from transparency.plugin import install
from transparency.trial import LEDGER

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3"}, "other": {"ENGINE": "django.db.backends.sqlite3"}}
SECRET_KEY = "of the tests alone"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "transparency.django_runner.Runner"


class Recorded(unittest.TextTestResult):
    """Notes the worst that happened to a test."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._path = Path(os.environ[OUTCOMES])
        self._result, self._reason = "passed", ""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._result, self._reason = "passed", ""

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        write(self._path, Outcome(test.id(), self._result, self._reason, *LEDGER.take()))

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._failed(err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._failed(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._failed(err)

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self._result, self._reason = "failed", "unexpected success"

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._result = "skipped"

    def _failed(self, err: Any) -> None:
        self._result, self._reason = "failed", f"{err[0].__name__}: {err[1]}"


class Runner(DiscoverRunner):  # type: ignore[misc]
    def get_resultclass(self) -> type[Recorded]:
        return Recorded

    def setup_test_environment(self, **kwargs: Any) -> None:
        super().setup_test_environment(**kwargs)
        install(os.environ[ARM])
