"""The connections of the async face: what makes one useless, and that nothing else does."""

import asyncio
import datetime
import time
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from semel import Occupied, Result, StoreUnavailable
from semel.errors import StoreTimeout
from semel.stores.redis.aio import AsyncRedisStore
from semel.testing.proxy import Fault, FaultProxy
from servers.process import free_port
from servers.redis import RedisServer
from stores.redis_cases import CLAIM, KEY, async_store, client, granted, key, server
from waiting import until

Run = Callable[[Coroutine[Any, Any, None]], None]
SHORT = "timeout_ms=200"
LARGE = Result("raw", bytes(range(256)) * 4096)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return {"asyncio": asyncio.run, "uvloop": uvloop.run}[request.param]


def opened(store: AsyncRedisStore) -> list[Any]:
    """The connections of the store, as the driver has them."""
    return store._link.get()._servers._at(None).connections._opened


async def until_seen(connection: Any) -> None:
    """Until something came that nobody waits for: a reply, or the end of the connection."""
    while not await connection.can_read():
        await asyncio.sleep(0.001)


async def _use(store: AsyncRedisStore) -> None:
    """Both ways, small and large: a megabyte comes and goes in many pieces."""
    for number in range(3):
        lease = granted(await store.claim(key(number), "f", owner="owner", **CLAIM))
        assert await store.complete(lease, LARGE, retention_ms=60_000)
        found = await store.claim(key(number), "f", owner="other", **CLAIM)
        assert isinstance(found, Occupied)
        assert found.record.result == LARGE
    assert await store.get(key(3)) is None


def test_one_connection_serves_one_call_after_another(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(proxy.url) as store:
                await _use(store)
                await asyncio.gather(*(store.get(key(number)) for number in range(5)))
                assert proxy.connections == 1

    run(main())


def test_a_reply_that_nobody_asked_for_ends_the_connection(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(proxy.url) as store:
                granted(await store.claim(KEY, "f", owner="owner", **CLAIM))
                (connection,) = opened(store)
                await connection.send_command("ECHO", "late", check_health=False)
                await until_seen(connection)
                assert isinstance(await store.claim(KEY, "f", owner="other", **CLAIM), Occupied)
                assert proxy.connections == 2

    run(main())


def test_an_idle_connection_that_the_server_closed_is_not_a_failure(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(private_redis.url) as store:
            await store.get(KEY)
            driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await until_seen(opened(store)[0])
            assert await store.get(KEY) is None

    with client(private_redis.url) as driver:
        run(main())


def test_what_follows_a_reply_is_not_the_next_one_s(private_redis: RedisServer, run: Run) -> None:
    """Two replies in one piece: the first is the answer, the other must not be taken for the next answer."""

    async def main() -> None:
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(proxy.url) as store:
                await store.get(KEY)
                (connection,) = opened(store)
                await connection.send_packed_command(b"PING\r\nECHO late\r\n", check_health=False)
                assert await connection.read_response() == b"PONG"
                await until_seen(connection)
                assert await store.get(KEY) is None
                assert proxy.connections == 2

    run(main())


def test_a_caller_that_left_takes_its_connection_along(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(proxy.url) as store:
                granted(await store.claim(KEY, "f", owner="owner", **CLAIM))
                held = proxy.inject(Fault.HOLD_REPLY)
                task = asyncio.create_task(store.scan())
                await asyncio.to_thread(held.wait)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
                assert await store.get(key(2)) is None
                proxy.let_go()
                assert isinstance(await store.claim(KEY, "f", owner="other", **CLAIM), Occupied)
                assert proxy.connections == 2

    run(main())


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HALF_CLOSE, Fault.GARBLE])
def test_a_broken_exchange_is_the_error_of_its_caller_only(private_redis: RedisServer, run: Run, fault: Fault) -> None:
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(proxy.url) as store:
                lease = granted(await store.claim(KEY, "f", owner="owner", **CLAIM))
                proxy.inject(fault)
                with pytest.raises(StoreUnavailable, match="did not answer"):
                    await store.get(KEY)
                assert await store.release(lease)
                assert await store.get(KEY) is None

    run(main())
    assert not complaints


def test_every_exchange_has_its_own_time(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(f"{private_redis.url}?{SHORT}") as store:
            await store.get(KEY)
            await asyncio.sleep(0.05)
            private_redis.pause()
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="nothing within 200 ms"):
                await store.get(KEY)
            assert 0.19 < time.monotonic() - started < 10
            private_redis.resume()
            assert await store.get(KEY) is None

    run(main())


def test_tasks_share_a_bounded_number_of_connections(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(f"{private_redis.url}?pool_max=2") as store:
            await asyncio.gather(*(each() for each in (store.scan, store.counts) for _ in range(50)))
            assert len(opened(store)) == 2
            with client(private_redis.url) as driver:
                assert len(driver.client_list()) == 3

    run(main())


def test_tasks_wait_for_a_connection_only_so_long(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(f"{private_redis.url}?pool_max=1&{SHORT}") as store:
            await store.get(KEY)
            private_redis.pause()
            replies = await asyncio.gather(*(store.counts() for _ in range(5)), return_exceptions=True)
            private_redis.resume()
            assert {type(reply) for reply in replies} == {StoreTimeout}
            assert (await store.counts()).in_progress == 0

    run(main())


def test_a_late_exchange_takes_its_connection_along(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(f"{proxy.url}?{SHORT}") as store:
                await store.get(KEY)
                proxy.inject(Fault.HOLD_REPLY)
                with pytest.raises(StoreTimeout, match="nothing within 200 ms"):
                    await store.get(KEY)
                proxy.let_go()
                assert await store.get(KEY) is None
                assert proxy.connections == 2

    run(main())


def test_closing_leaves_nothing_open(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(private_redis.url) as store:
            await asyncio.gather(store.get(KEY), store.scan(), store.counts())
            assert len(driver.client_list()) > 1
        until(lambda: len(driver.client_list()) == 1)

    with client(private_redis.url) as driver:
        run(main())


def test_tls(tmp_path: Path, run: Run) -> None:
    public, private = _certificate(tmp_path)
    port = free_port()
    files = ("--tls-cert-file", str(public), "--tls-key-file", str(private), "--tls-ca-cert-file", str(public))

    async def main(url: str, driver: Any) -> None:
        async with async_store(url) as store:
            await _use(store)
            driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await until_seen(opened(store)[0])
            assert await store.get(key(3)) is None

    with (
        server("--tls-port", str(port), "--tls-auth-clients", "no", *files) as running,
        client(running.url) as driver,
    ):
        run(main(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={public}", driver))


def _certificate(folder: Path) -> tuple[Path, Path]:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    public, private = folder / "cert.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return public, private
