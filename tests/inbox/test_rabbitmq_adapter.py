"""Consuming queues of RabbitMQ."""

import pytest

from inbox.adapters import AdapterScenarios
from inbox.brokers import OnRabbitmq
from servers.rabbitmq import Rabbitmq


class TestRabbitmqConsumer(AdapterScenarios):
    @pytest.fixture
    def broker(self, rabbitmq_server: Rabbitmq) -> OnRabbitmq:
        return OnRabbitmq(rabbitmq_server.url)
