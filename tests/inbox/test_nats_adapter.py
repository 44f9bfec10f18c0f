"""Consuming streams of NATS JetStream."""

import pytest

from inbox.adapters import AdapterScenarios
from inbox.brokers import OnNats
from servers.nats import Nats


class TestNatsConsumer(AdapterScenarios):
    @pytest.fixture
    def broker(self, nats_server: Nats) -> OnNats:
        return OnNats(nats_server.url)
