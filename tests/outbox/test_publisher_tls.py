"""Publishing over TLS: a certificate that is not trusted is refused, and `ca_file` names one to trust."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aio_pika
import nats
import pytest

from semel.errors import BrokerMisconfigured
from semel.outbox import Message, open_publisher
from servers.certificates import write_certificate
from servers.nats import NatsServer
from servers.needing import needed
from servers.process import free_port
from servers.rabbitmq import RabbitmqServer
from servers.redis import RedisServer


@contextmanager
def rabbitmq(certificate: Path, key: Path) -> Iterator[str]:
    port = free_port()
    lines = (
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.certfile = {certificate}",
        f"ssl_options.keyfile = {key}",
    )

    async def declare(url: str) -> None:
        async with await aio_pika.connect(url) as connection:
            await (await connection.channel()).declare_queue("q")

    with needed("rabbitmq", lambda: RabbitmqServer(*lines)) as server:
        asyncio.run(declare(server.url))
        yield f"amqps://guest:guest@127.0.0.1:{port}/"


@contextmanager
def jetstream(certificate: Path, key: Path) -> Iterator[str]:
    async def add_stream(server: NatsServer) -> None:
        client = await nats.connect(server.url, tls=ssl.create_default_context(cafile=certificate))
        await client.jetstream().add_stream(name="Q", subjects=["q"])
        await client.close()

    with needed("nats", lambda: NatsServer("--tls", "--tlscert", str(certificate), "--tlskey", str(key))) as server:
        asyncio.run(add_stream(server))
        yield server.url.replace("nats:", "tls:")


@contextmanager
def redis(certificate: Path, key: Path) -> Iterator[str]:
    port = free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with needed("redis", lambda: RedisServer("--tls-port", str(port), *files)):
        yield f"rediss://127.0.0.1:{port}/0"


@pytest.mark.parametrize("start", [rabbitmq, jetstream, redis])
def test_a_certificate_is_verified(tmp_path: Path, start: object) -> None:
    assert callable(start)
    certificate, key = write_certificate(tmp_path)

    async def run(url: str) -> None:
        trusting, strict = open_publisher(f"{url}?ca_file={certificate}"), open_publisher(url)
        await trusting.publish(Message("m", "q", b""))
        with pytest.raises(BrokerMisconfigured, match=r"name the certificates to trust with \?ca_file="):
            await strict.publish(Message("m", "q", b""))
        await asyncio.gather(trusting.close(), strict.close())

    with start(certificate, key) as url:
        asyncio.run(run(url))
