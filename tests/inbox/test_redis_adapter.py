"""Consuming Redis streams."""

import pytest

from inbox.adapters import AdapterScenarios
from inbox.brokers import OnRedis


class TestRedisConsumer(AdapterScenarios):
    @pytest.fixture
    def broker(self, redis_url: str) -> OnRedis:
        return OnRedis(redis_url)
