"""The start-up check and the URL: what is refused, what is warned about, and what each says."""

import asyncio
import warnings
from collections.abc import Mapping

import pytest

from semel import StoreMisconfigured, StoreUnavailable, open_store
from semel.stores.redis.check import RedisSettingsWarning, check
from semel.stores.redis.settings import RedisSettings
from semel.stores.url import StoreUrl
from servers.redis import RedisServer
from stores.redis_cases import KEY, async_store, client, server, sync_store

EVICTING = ("--maxmemory", "50mb", "--maxmemory-policy")


def ask(url: str) -> list[str]:
    """Use both faces twice, and return the warnings."""

    async def run() -> None:
        async with async_store(url) as store:
            await asyncio.gather(*(store.get(KEY) for _ in range(3)))
            await store.counts()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with sync_store(url) as store:
            store.get(KEY)
            store.get(KEY)
        asyncio.run(run())
    return [str(each.message) for each in caught if issubclass(each.category, RedisSettingsWarning)]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_evicting_server_is_refused(policy: str) -> None:
    with server(*EVICTING, policy) as running:
        for _ in range(2):
            with pytest.raises(StoreMisconfigured, match="CONFIG SET maxmemory-policy noeviction") as caught:
                ask(running.url)
            assert policy in str(caught.value)
        assert ask(f"{running.url}?accept_eviction=true") == []


def test_a_refused_server_is_asked_again_after_the_change(private_redis: RedisServer) -> None:
    with client(private_redis.url) as driver, sync_store(private_redis.url) as store:
        driver.config_set("maxmemory", "50mb")
        driver.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreMisconfigured):
            store.get(KEY)
        driver.config_set("maxmemory-policy", "noeviction")
        assert store.get(KEY) is None


def test_an_evicting_policy_is_refused_even_while_there_is_no_limit() -> None:
    with (
        server("--maxmemory", "0", "--maxmemory-policy", "allkeys-lru") as running,
        pytest.raises(StoreMisconfigured, match="CONFIG SET maxmemory-policy noeviction"),
    ):
        ask(running.url)


def test_a_server_that_forgets_is_warned_about_once_for_each_store() -> None:
    with server("--appendonly", "no") as running:
        said = ask(running.url)
        assert len(said) == 2
        assert "CONFIG SET appendonly yes" in said[0]
        assert ask(f"{running.url}?accept_no_persistence=true") == []


def test_a_durable_server_is_not_warned_about(redis_url: str) -> None:
    assert ask(redis_url) == []


def test_config_need_not_be_allowed() -> None:
    with server("--rename-command", "CONFIG", "") as running:
        assert ask(running.url) == []
    evicting = server("--rename-command", "CONFIG", "", *EVICTING, "allkeys-lru")
    with evicting as running, pytest.raises(StoreMisconfigured, match="allkeys-lru"):
        ask(running.url)


def test_a_server_that_does_not_tell_is_unverified() -> None:
    with server("--rename-command", "INFO", "") as running:
        said = ask(running.url)
        assert len(said) == 2
        assert "unverified" in said[0]
        assert ask(f"{running.url}?accept_unverified=true") == []


def test_a_user_who_may_not_ask_is_unverified_and_the_least_rights_are_enough(private_redis: RedisServer) -> None:
    with client(private_redis.url) as driver:
        rights = "~semel:* &semel:* +@read +@write +@scripting +@pubsub +@connection +time".split()
        driver.execute_command("ACL", "SETUSER", "app", "on", ">secret", *rights)
        url = private_redis.url.replace("//", "//app:secret@")
        assert "unverified" in ask(url)[0]
        driver.execute_command("ACL", "SETUSER", "app", "+info")
        assert ask(url) == []
        with pytest.raises(StoreMisconfigured, match="ACL SETUSER") as caught:
            ask(f"{url}?prefix=other")
        assert "secret" not in str(caught.value)


def test_a_replica_is_unavailable(private_redis: RedisServer) -> None:
    said = rf"replica: name its primary \(127\.0\.0\.1:{private_redis.port}\)"
    replicas = server("--replicaof", "127.0.0.1", str(private_redis.port))
    with replicas as replica, pytest.raises(StoreUnavailable, match=said):
        ask(replica.url)


@pytest.mark.parametrize("login", ["", "app:wrong@", ":wrong@"])
def test_a_wrong_login_is_a_matter_of_the_url(private_redis: RedisServer, login: str) -> None:
    with client(private_redis.url) as driver:
        driver.config_set("requirepass", "s3cret")
    with pytest.raises(StoreMisconfigured, match="check the user name and password") as caught:
        ask(private_redis.url.replace("//", f"//{login}"))
    assert "wrong" not in str(caught.value)
    assert ask(private_redis.url.replace("//", "//:s3cret@")) == []


def test_a_database_that_is_not_there() -> None:
    with server("--databases", "1") as running, pytest.raises(StoreMisconfigured, match="no database of that number"):
        ask(running.url.removesuffix("/0") + "/7")


def told(info: Mapping[str, object]) -> None:
    """Run the check on what a server that we cannot run here would say."""
    plan = check(RedisSettings("redis://old", "redis://old"))
    next(plan)
    with pytest.raises(StopIteration):
        plan.send(info)


def test_old_servers_are_refused() -> None:
    info = {"role": "master", "maxmemory": 0, "maxmemory_policy": "noeviction", "aof_enabled": 1}
    with pytest.raises(StoreMisconfigured, match=r"is Redis 6\.0\.16; semel needs 6\.2"):
        told(info | {"redis_version": "6.0.16"})
    told(info | {"redis_version": "6.2.0"})
    told(info | {"redis_version": "7.2.4", "server_name": "valkey"})
    with pytest.warns(RedisSettingsWarning, match="INFO has no maxmemory_policy"):
        told({"role": "master", "maxmemory": 0, "aof_enabled": 1})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost/main", "the database of Redis is a number, not 'main'"),
        ("redis://localhost:port/0", "port"),
        ("redis://localhost/0?prefix=a{b}", "option prefix must be"),
        ("redis://localhost/0?timeout_ms=0", "timeout_ms must be a number"),
        ("redis://localhost/0?accept_evicton=true", "did you mean accept_eviction"),
        ("redis://localhost/0?ssl_ca_certs=ca.pem", "unknown option 'ssl_ca_certs'"),
        ("redis://:pass@localhost/x", "redis://:***@localhost/x"),
    ],
)
def test_bad_urls(url: str, said: str) -> None:
    with pytest.raises(StoreMisconfigured, match=said.replace("*", r"\*")):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "driver_url"),
    [
        ("redis://host", "redis://host"),
        ("valkey://user:p%40ss@host:7000/3?prefix=x", "redis://user:p%40ss@host:7000/3"),
        ("valkeys://host/1", "rediss://host/1"),
        ("redis:///run/redis.sock?database=2", "unix:///run/redis.sock?db=2"),
        ("redis://:pass@/run/redis.sock", "unix://:pass@/run/redis.sock?db=0"),
    ],
)
def test_urls_for_the_driver(url: str, driver_url: str) -> None:
    parsed = StoreUrl.parse(url)
    assert RedisSettings.of(parsed).url == driver_url
    parsed.finish()


def test_tls_files_are_options() -> None:
    assert RedisSettings.of(StoreUrl.parse("rediss://host?ssl_ca_certs=ca.pem")).tls == {"ssl_ca_certs": "ca.pem"}


def test_a_unix_socket() -> None:
    with server("--unixsocket", "redis.sock") as running:
        assert ask(f"redis://{running.folder}/redis.sock") == []
