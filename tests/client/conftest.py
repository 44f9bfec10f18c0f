"""One client after the other: a test that takes `open_front` runs with each way to send."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from client.fronts import FRONTS, Front, Open
from semel.client import Retry

FAST = Retry(attempts=4, deadline=20, pause_max=0.02)


@pytest.fixture(params=sorted(FRONTS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_front(kind: str) -> Iterator[Open]:
    with ExitStack() as fronts:

        def open_one(**options: Any) -> Front:
            return fronts.enter_context(closing(FRONTS[kind](**{"retry": FAST, **options})))

        yield open_one
