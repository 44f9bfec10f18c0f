"""The exchange of the async face: what makes a connection useless, and that nothing else does."""

import asyncio
import datetime
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
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
from semel.stores.redis import wire
from semel.stores.redis.aio import AsyncRedisStore
from semel.testing.proxy import Fault, FaultProxy
from servers.process import free_port
from servers.redis import RedisServer
from stores.redis_cases import CLAIM, KEY, async_store, client, granted, key, server

Run = Callable[[Coroutine[Any, Any, None]], None]
SHORT = "timeout_ms=200"
LARGE = Result("raw", bytes(range(256)) * 4096)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return {"asyncio": asyncio.run, "uvloop": uvloop.run}[request.param]


@contextmanager
def opened() -> Iterator[list[wire.Replies]]:
    """The connections that are opened meanwhile."""
    made: list[wire.Replies] = []
    with pytest.MonkeyPatch.context() as patch:
        init = wire.Replies.__init__

        def noted(self: wire.Replies, *arguments: Any) -> None:
            made.append(self)
            init(self, *arguments)

        patch.setattr(wire.Replies, "__init__", noted)
        yield made


def assert_another(made: list[wire.Replies]) -> None:
    """The first was given up, and what came after it was asked on a connection of its own."""
    first, second = made
    assert first._transport is not second._transport
    assert first._transport.is_closing()


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
        async with async_store(private_redis.url) as store:
            await _use(store)

    with opened() as made:
        run(main())
    assert len(made) == 1


def test_a_reply_that_nobody_asked_for_ends_the_connection(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(private_redis.url) as store:
            granted(await store.claim(KEY, "f", owner="owner", **CLAIM))
            made[0]._transport.write(b"*2\r\n$4\r\nECHO\r\n$4\r\nlate\r\n")
            while made[0].usable:
                await asyncio.sleep(0.001)
            assert isinstance(await store.claim(KEY, "f", owner="other", **CLAIM), Occupied)
            assert_another(made)

    with opened() as made:
        run(main())


def test_an_end_that_was_seen_is_not_written_to(private_redis: RedisServer, run: Run) -> None:
    """The loop tells of the end of what comes before it tells of the end of the connection."""

    async def main() -> None:
        async with async_store(private_redis.url) as store:
            await store.get(KEY)
            made[0].eof_received()
            assert await store.get(KEY) is None
            assert_another(made)

    with opened() as made:
        run(main())


def test_what_follows_a_reply_is_not_the_next_one_s(private_redis: RedisServer, run: Run) -> None:
    """Two replies in one piece: the first is the answer, the other must not be taken for the next answer."""

    async def main() -> None:
        async with async_store(private_redis.url) as store:
            await store.get(KEY)
            assert await made[0].to(b"PING\r\nECHO late\r\n") == b"PONG"
            assert await store.get(KEY) is None
            assert_another(made)

    with opened() as made:
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
                assert_another(made)

    with opened() as made:
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
    """One timer watches all exchanges of a connection: one that began later is late later."""

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
            assert len(made) == 2
            with client(private_redis.url) as driver:
                assert len(driver.client_list()) == 3

    with opened() as made:
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


def test_closing_leaves_nothing_open(private_redis: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with async_store(private_redis.url) as store:
            await asyncio.gather(store.get(KEY), store.scan(), store.counts())
        assert all(each._transport.is_closing() for each in made)
        assert not [each for each in made if each._timer is not None and not each._timer.cancelled()]

    with opened() as made:
        run(main())
    assert made


def test_a_driver_that_does_not_show_its_transport(
    private_redis: RedisServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_transport", lambda connection: None)

    async def main() -> None:
        with FaultProxy(private_redis.url) as proxy:
            async with async_store(proxy.url) as store:
                await _use(store)
                connections = proxy.connections
                await asyncio.gather(*(store.get(key(number)) for number in range(5)))
                assert proxy.connections == connections
                proxy.inject(Fault.CUT_AFTER)
                with pytest.raises(StoreUnavailable):
                    await store.get(KEY)
                assert await store.get(KEY) is None
            async with async_store(f"{proxy.url}?{SHORT}") as store:
                await store.get(KEY)
                proxy.inject(Fault.HOLD_REPLY)
                with pytest.raises(StoreUnavailable, match="nothing within 200 ms"):
                    await store.get(KEY)
                proxy.let_go()
                assert await store.get(KEY) is None

    with opened() as made:
        run(main())
    assert not made


def test_its_idle_connection_that_the_server_closed_is_not_a_failure(
    private_redis: RedisServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_transport", lambda connection: None)

    async def main() -> None:
        async with async_store(f"{private_redis.url}?pool_max=1") as store:
            await store.get(KEY)
            driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            stream = store._link.get()._wires[0]._connection._reader
            while not stream.at_eof():
                await asyncio.sleep(0.001)
            assert await store.get(KEY) is None

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
            while made[-1].usable:
                await asyncio.sleep(0.001)
            assert await store.get(key(3)) is None
        assert len(made) == 2

    with (
        opened() as made,
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
