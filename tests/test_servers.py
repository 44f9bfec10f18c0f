"""The servers that the other tests stand on: they answer, die, come back with their data, leave nothing behind."""

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aio_pika
import aio_pika.abc
import nats
import psutil
import psycopg
import pymysql
import pytest
import redis
from botocore.exceptions import EndpointConnectionError
from pymysql.err import OperationalError

from servers import binaries, process
from servers.dynalite import DynaliteServer
from servers.mariadb import MariadbServer, arguments
from servers.moto import ACCOUNT, REGION, AwsServer, MotoServer
from servers.nats import NatsServer
from servers.needing import needed
from servers.postgres import Postgres, PostgresServer, database_of
from servers.process import Server, ServerFailed
from servers.rabbitmq import RabbitmqServer
from servers.redis import RedisServer

PATIENCE_S = 20


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, connect_timeout=PATIENCE_S, prepare_threshold=None) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def client(url: str, timeout_s: float = PATIENCE_S) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_timeout=timeout_s, retry=None)


def readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_postgres_url_is_a_fresh_database(postgres_url: str) -> None:
    assert query(postgres_url, "SELECT current_database()") == [(database_of(postgres_url),)]
    assert query(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_redis_url_is_an_empty_database(redis_url: str) -> None:
    with client(redis_url) as connection:
        assert connection.dbsize() == 0


def test_pgbouncer_pools_by_transaction(pgbouncer_url: str, postgres_url: str) -> None:
    assert query(pgbouncer_url, "SELECT current_database()") == [(database_of(postgres_url),)]
    with psycopg.connect(pgbouncer_url, autocommit=True) as one, psycopg.connect(pgbouncer_url, autocommit=True) as two:
        backends = {connection.execute("SELECT pg_backend_pid()").fetchone() for connection in (one, two)}
    assert len(backends) == 1, "two clients that are not in a transaction share a backend"


def test_postgres_keeps_its_data_when_killed(private_postgres: PostgresServer) -> None:
    query(private_postgres.url, "CREATE TABLE kept AS SELECT 1 AS number")
    with psycopg.connect(private_postgres.url) as connection, contextlib.suppress(psycopg.OperationalError):
        private_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        query(private_postgres.url, "SELECT 1")
    private_postgres.restart()
    assert query(private_postgres.url, "SELECT number FROM kept") == [(1,)]


def test_redis_keeps_its_data_when_killed(private_redis: RedisServer) -> None:
    with client(private_redis.url) as connection:
        connection.set("kept", "1")
        private_redis.kill()
        with pytest.raises(redis.ConnectionError):
            connection.ping()
        private_redis.restart()
        assert connection.get("kept") == b"1"


def test_mariadb_keeps_its_data_when_killed() -> None:
    with needed("mariadb", MariadbServer) as server:
        given = arguments(server.create_database("kept"))
        with pymysql.connect(**given) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept AS SELECT 1 AS number")
        server.kill()
        with pytest.raises(OperationalError):
            pymysql.connect(**given)
        server.restart()
        with pymysql.connect(**given) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT number FROM kept")
            assert cursor.fetchall() == ((1,),)


async def with_queue(
    url: str, work: "Callable[[aio_pika.abc.AbstractChannel, aio_pika.abc.AbstractQueue], Awaitable[object]]"
) -> object:
    async with await aio_pika.connect(url, timeout=PATIENCE_S) as connection:
        channel = await connection.channel()
        return await work(channel, await channel.declare_queue("kept", durable=True))


async def put(channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue) -> None:
    lasting = aio_pika.Message(b"1", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(lasting, queue.name, timeout=PATIENCE_S)


async def count(channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue) -> int | None:
    return queue.declaration_result.message_count


def test_rabbitmq_keeps_what_it_confirmed_when_killed(private_rabbitmq: RabbitmqServer) -> None:
    asyncio.run(with_queue(private_rabbitmq.url, put))
    private_rabbitmq.kill()
    with pytest.raises(OSError):
        private_rabbitmq.probe()
    private_rabbitmq.restart()
    assert asyncio.run(with_queue(private_rabbitmq.url, count)) == 1


def test_nats_keeps_what_it_confirmed_when_killed(private_nats: NatsServer) -> None:
    async def put() -> None:
        client = await nats.connect(private_nats.url)
        stream = client.jetstream()
        await stream.add_stream(name="kept", subjects=["kept"])
        await stream.publish("kept", b"1")
        await client.close()

    async def count() -> int:
        client = await nats.connect(private_nats.url)
        found = await client.jetstream().stream_info("kept")
        await client.close()
        return found.state.messages

    asyncio.run(put())
    private_nats.kill()
    with pytest.raises(OSError):
        private_nats.probe()
    private_nats.restart()
    assert asyncio.run(count()) == 1


def test_moto_stands_for_sqs_and_sns(moto_server: MotoServer) -> None:
    queues, topics = moto_server.client("sqs"), moto_server.client("sns")
    url = queues.create_queue(QueueName="there")["QueueUrl"]
    queues.send_message(QueueUrl=url, MessageBody="1")
    assert [each["Body"] for each in queues.receive_message(QueueUrl=url)["Messages"]] == ["1"]
    assert topics.create_topic(Name="there")["TopicArn"] == f"arn:aws:sns:{REGION}:{ACCOUNT}:there"


def test_dynalite_keeps_its_tables_when_killed(tmp_path: Path) -> None:
    with needed("dynalite", lambda: DynaliteServer(tmp_path / "tables")) as server:
        put_item(server)
        server.kill()
        with pytest.raises(EndpointConnectionError):
            server.probe()
        server.restart()
        found = server.client("dynamodb").get_item(TableName="kept", Key={"id": {"S": "1"}})
        assert found["Item"] == {"id": {"S": "1"}}


def put_item(server: AwsServer) -> None:
    client = server.client("dynamodb")
    client.create_table(
        TableName="kept",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    client.put_item(TableName="kept", Item={"id": {"S": "1"}})


def test_of_two_conditional_writes_at_once_one_is_done(moto_server: MotoServer) -> None:
    put_item(moto_server)
    client = moto_server.client("dynamodb")

    def put(number: int) -> bool:
        try:
            client.put_item(
                TableName="kept", Item={"id": {"S": f"{number // 8}"}}, ConditionExpression="attribute_not_exists(id)"
            )
        except client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(put, range(80, 240))) == 20


def test_postgres_paused_answers_nobody_until_it_is_resumed(private_postgres: PostgresServer) -> None:
    with contextlib.closing(psycopg.connect(private_postgres.url)) as connection:
        private_postgres.pause()
        connection.pgconn.send_query(b"SELECT 1")
        assert not readable(connection.pgconn.socket, 0.05)
        private_postgres.resume()
        assert readable(connection.pgconn.socket, PATIENCE_S)


def test_redis_paused_answers_nobody_until_it_is_resumed(private_redis: RedisServer) -> None:
    with client(private_redis.url, timeout_s=0.2) as hasty, client(private_redis.url) as connection:
        private_redis.pause()
        with pytest.raises(redis.TimeoutError):
            hasty.ping()
        private_redis.resume()
        assert connection.ping()


def test_rabbitmq_and_nats_paused_answer_nobody(private_rabbitmq: RabbitmqServer, private_nats: NatsServer) -> None:
    for server, hello in ((private_rabbitmq, b"AMQP\x00\x00\x09\x01"), (private_nats, b"")):
        server.pause()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(hello)
            assert not readable(connection.fileno(), 0.05)
            server.resume()
            assert readable(connection.fileno(), PATIENCE_S)


def test_redis_takes_other_settings() -> None:
    if binaries.find("redis") is None:
        pytest.skip("missing server: redis: no program redis-server on this machine")
    forgetful = ("--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
    with RedisServer(*forgetful) as server, client(server.url) as connection:
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert connection.config_get("appendonly") == {"appendonly": "no"}


def test_databases_of_one_server_are_apart(postgres_server: Postgres, postgres_url: str) -> None:
    other = postgres_server.create_database("semel_other")
    query(other, "CREATE TABLE only_here ()")
    assert query(postgres_url, "SELECT to_regclass('only_here')") == [(None,)]
    postgres_server.drop_database("semel_other")


class Sleeper(Server):
    """A server that starts what it is told to and answers when there is a file `ready`."""

    def __init__(self, script: str) -> None:
        super().__init__()
        self._script = script

    def prepare(self) -> None:
        pass

    def command(self) -> list[str | Path]:
        return ["sh", "-c", self._script]

    def probe(self) -> None:
        (self.folder / "ready").stat()


FAMILY = "sleep 600 & sleep 600 & : > ready; wait"


def test_a_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(ServerFailed, match="out of cheese"):
        Sleeper("echo out of cheese; exit 1").start()


def test_a_server_that_is_not_ready_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_SECONDS", 0.1)
    with pytest.raises(ServerFailed):
        Sleeper("sleep 600").start()


@pytest.mark.parametrize("end", [Sleeper.kill, Sleeper.stop])
def test_the_whole_tree_ends(end: Callable[[Sleeper], None]) -> None:
    before = set(psutil.Process().children(recursive=True))
    with Sleeper(FAMILY) as server:
        family = set(psutil.Process().children(recursive=True)) - before
        end(server)
        process.wait_until_dead(family)
    assert len(family) == 3
    assert not server.folder.exists()


def test_no_server_outlives_tests_that_were_killed(tmp_path: Path) -> None:
    if not process._die_with_us():
        pytest.skip("only Linux can promise this")
    script = """
import os, signal, test_servers
test_servers.Sleeper("echo $$ > pid; : > ready; exec sleep 600").start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    here, there = Path(__file__).parent, os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=here, env=there, check=False)
    (pid,) = (int(path.read_text()) for path in tmp_path.glob("*/pid"))
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait_until_dead([psutil.Process(pid)])
