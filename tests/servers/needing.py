"""What a test does without a server that it needs: it is skipped, loudly; where `CI` is set it fails."""

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from servers.binaries import MissingServer

MISSING = "missing server: "
Wanted = TypeVar("Wanted")


def needed(name: str, server: Callable[[], Wanted]) -> Wanted:
    try:
        return server()
    except MissingServer as error:
        message = f"{MISSING}{name}: {error}"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
