"""One gateway for all tests that leave it as it was, and a name for each test's key."""

import uuid
from collections.abc import Iterator

import pytest

from gateway.gatewaying import GatewayServer, Upstream

RULES = """
[tenant]
header = "X-Account"

[[rules]]
match = "/brief/"
lease = "400ms"

[[rules]]
match = "/again/"
lease = "400ms"
guarantee = "at-least-once"

[[rules]]
match = "/small/"
result_max = 1000

[[rules]]
match = "/exempt/"
exempt = true
"""


@pytest.fixture(scope="session")
def running() -> Iterator[tuple[GatewayServer, Upstream]]:
    upstream = Upstream()
    with GatewayServer(upstream.port, "--keepalive", "30", rules=RULES) as gateway:
        yield gateway, upstream
    upstream.close()


@pytest.fixture
def gateway(running: tuple[GatewayServer, Upstream]) -> GatewayServer:
    return running[0]


@pytest.fixture
def upstream(running: tuple[GatewayServer, Upstream]) -> Iterator[Upstream]:
    yield running[1]
    running[1].settle()
    running[1].behaviours.clear()
    running[1].go.clear()


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex
