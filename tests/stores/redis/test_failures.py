"""What the Redis store does when Redis, its replica or the way there fails, and what it says."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.databases.certificates import Certificates
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.redis import redis_server, redis_server_of
from tests.databases.server import Server, free_port, running, skip_if_missing
from tests.stores.redis.asking import claims, keys, opened, until

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import Ack, Acquired, AlreadyDone, Busy, Complete, Exchange, Outcome, Release, Renew
from ackwise.stores.redis import RedisStore, from_url

pytestmark = pytest.mark.servers


@pytest.fixture
def redis(own_redis: Server) -> Server:
    """One that no other test uses, since it is stopped, killed and frozen here."""
    return own_redis


@pytest.fixture
async def proxy(redis: Server) -> AsyncIterator[Proxy]:
    async with proxy_to(redis.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[RedisStore]:
    async with opened(RedisStore(f"redis://127.0.0.1:{proxy.port}", timeout=1.0)) as store:
        yield store


async def test_an_exchange_is_repeated_once_and_no_more(proxy: Proxy, store: RedisStore) -> None:
    await store.exchange(Exchange(claims(keys(1))))
    proxy.cut_after = lambda _: True
    connections = proxy.connections
    with pytest.raises(StoreUnavailable, match=r"redis://127\.0\.0\.1:\d+: the connection broke and could not be replaced"):
        await store.exchange(Exchange(claims(keys(1))))
    assert proxy.connections == connections + 1
    proxy.cut_after = None
    assert (await store.exchange(Exchange(claims(keys(1))))).claims == [Acquired(1)]


async def test_a_client_that_repeats_for_long_is_given_up_in_time_too(redis: Server) -> None:
    async with Redis(port=redis.port, socket_timeout=0.1) as client, opened(RedisStore(client=client, timeout=0.5)) as store:
        redis.freeze()
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"no answer within 0\.5 s"):
                await store.exchange(Exchange(claims(keys(1))))
            assert time.monotonic() - began < 2.0
        finally:
            redis.thaw()
        assert (await store.exchange(Exchange(claims(keys(1))))).claims == [Acquired(1)]


async def test_a_server_that_is_started_again_is_asked_with_the_whole_script(redis: Server) -> None:
    async with opened(RedisStore(f"redis://127.0.0.1:{redis.port}")) as store:
        await store.exchange(Exchange(claims(keys(1))))
        redis.restart()
        assert (await store.exchange(Exchange(claims(keys(1200))))).claims == [Acquired(1)] * 1200
        async with Redis(port=redis.port) as server:
            await server.script_flush()
        assert (await store.exchange(Exchange(claims(keys(1200))))).claims == [Acquired(1)] * 1200


async def test_a_full_memory_is_told_of_and_applies_nothing(tmp_path: Path) -> None:
    with skip_if_missing("Redis"), redis_server(tmp_path) as server:
        async with opened(RedisStore(f"redis://127.0.0.1:{server.port}")) as store, Redis(port=server.port) as direct:
            some = keys(100)
            await direct.config_set("maxmemory", 1)
            with pytest.raises(StoreUnavailable, match="its memory is full; raise maxmemory"):
                await store.exchange(Exchange(claims(some)))
            await direct.config_set("maxmemory", 0)
            assert (await store.exchange(Exchange(claims(some, token=2)))).claims == [Acquired(1)] * 100


async def test_what_was_acknowledged_survives_a_kill_of_a_server_with_an_append_only_file(tmp_path: Path) -> None:
    with skip_if_missing("Redis"), redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "everysec") as server:
        async with opened(RedisStore(f"redis://127.0.0.1:{server.port}", layout="compact")) as store:
            some = keys(300)
            await store.exchange(Exchange(claims(some)))
            await store.exchange(Exchange(completes=[Complete(key, 1, Outcome.OK) for key in some[:200]]))
            server.kill()
            server.start()
            answers = (await store.exchange(Exchange(claims(some, token=2)))).claims
            assert answers[:200] == [AlreadyDone(Outcome.OK)] * 200
            assert {type(answer) for answer in answers[200:]} == {Busy}


async def until_replicated(primary: Server) -> None:
    async with Redis(port=primary.port) as server:

        async def is_online() -> bool:
            info = await server.info("replication")
            return bool(info["connected_slaves"]) and info["slave0"]["state"] == "online"

        await until(is_online)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """A primary and its replica, connected."""
    with skip_if_missing("Redis"), contextlib.ExitStack() as stack:
        primary = stack.enter_context(redis_server(tmp_path / "primary", "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port)))
        await until_replicated(primary)
        yield primary, replica


async def test_with_wait_nothing_is_believed_that_no_replica_acknowledged(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    url = f"redis://127.0.0.1:{primary.port}?wait=1&wait_timeout=0.5"
    async with opened(from_url(url)) as store, opened(from_url(url)) as another:
        acknowledged, unacknowledged = keys(2)
        assert (await store.exchange(Exchange(claims([acknowledged])))).claims == [Acquired(1)]
        replica.freeze()
        try:
            sentence = "0 of 1 replicas acknowledged within 0.5 s, so nothing of the exchange is believed"
            done = Exchange(completes=[Complete(unacknowledged, 1, Outcome.OK)])
            with pytest.raises(StoreUnavailable, match=sentence):
                await store.exchange(done)
            for asked in (done, Exchange(claims([unacknowledged], token=2))):  # neither changes anything
                with pytest.raises(StoreUnavailable, match=sentence):
                    await store.exchange(asked)
                with pytest.raises(StoreUnavailable, match=sentence):
                    await another.exchange(asked)
        finally:
            replica.thaw()
        assert (await another.exchange(Exchange(claims([unacknowledged], token=2)))).claims == [AlreadyDone(Outcome.OK)]
        primary.kill()
        async with Redis(port=replica.port) as server:
            await server.execute_command("REPLICAOF", "NO", "ONE")
        async with opened(RedisStore(f"redis://127.0.0.1:{replica.port}")) as promoted:
            answers = (await promoted.exchange(Exchange(claims([unacknowledged, acknowledged], token=3)))).claims
            assert answers[0] == AlreadyDone(Outcome.OK)
            assert isinstance(answers[1], Busy)


async def test_without_wait_a_fail_over_forgets_what_was_acknowledged_and_a_complete_restores_it(tmp_path: Path) -> None:
    with skip_if_missing("Redis"), contextlib.ExitStack() as stack:
        primary = stack.enter_context(redis_server(tmp_path / "primary", "--repl-diskless-sync-delay", "0"))
        key, done = keys(2)
        async with proxy_to(primary.port) as behind:
            replica = stack.enter_context(redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(behind.port)))
            async with opened(RedisStore(f"redis://127.0.0.1:{primary.port}")) as store:
                await until_replicated(primary)
                behind.swallow_replies = True  # the replica falls behind
                assert (await store.exchange(Exchange(claims([key, done])))).claims == [Acquired(1)] * 2
                assert (await store.exchange(Exchange(completes=[Complete(done, 1, Outcome.OK)]))).completes == [Ack.OK]
                primary.kill()
        async with Redis(port=replica.port) as server:
            await server.execute_command("REPLICAOF", "NO", "ONE")
        async with opened(RedisStore(f"redis://127.0.0.1:{replica.port}")) as promoted:
            result = await promoted.exchange(Exchange(claims([done], token=2), [Complete(key, 1, Outcome.OK)]))
            assert (result.completes, result.claims) == ([Ack.RESTORED], [Acquired(1)])


async def test_a_replica_is_refused(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    with pytest.raises(StoreUnavailable, match="it is a replica, which takes no claims; name the primary"):
        await RedisStore(f"redis://127.0.0.1:{replica.port}").open()
    async with opened(RedisStore(f"redis://127.0.0.1:{primary.port}", wait=1)):
        pass
    async with Redis(port=replica.port) as direct:

        async def marked() -> bool:
            return await direct.get("ackwise:layout") is not None

        await until(marked)
    async with opened(RedisStore(f"redis://127.0.0.1:{replica.port}")) as store:
        with pytest.raises(StoreUnavailable, match="it is a replica"):
            await store.exchange(Exchange(claims(keys(1))))
        assert any("it is a replica" in sentence for sentence in await store.check())


async def test_check_tells_of_what_is_unwise_and_of_nothing_else(pair: tuple[Server, Server]) -> None:
    primary, _ = pair
    async with Redis(port=primary.port) as server:
        await server.config_set("appendonly", "yes")
        store = RedisStore(f"redis://127.0.0.1:{primary.port}", layout="compact", wait=1)
        assert await store.check() == []
        await server.config_set("maxmemory-policy", "allkeys-lru")
        await server.config_set("appendonly", "no")
        await server.config_set("hash-max-listpack-entries", "64")
        sentences = await RedisStore(f"redis://127.0.0.1:{primary.port}", layout="compact", wait=2).check()
    where = f"redis://127.0.0.1:{primary.port}: "
    assert sentences == [
        where + "maxmemory-policy is allkeys-lru, so when memory is full it forgets what was done; set it to noeviction",
        where + "it keeps no append-only file, so a restart forgets what was done since the last snapshot; set appendonly yes",
        where + "wait=2, and 1 replicas are connected, so every exchange fails; connect them, or lower wait",
        where + "hash-max-listpack-entries is 64, which makes compact records three times as large; set it to 128",
    ]


async def test_a_namespace_of_another_layout_or_of_a_newer_version_is_refused_and_not_touched(redis: Server) -> None:
    url = f"redis://127.0.0.1:{redis.port}"
    async with opened(RedisStore(url, namespace="laid-out")):
        pass
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=r"the namespace laid-out is laid out as '3 layout=plain', and this store wants '3 layout="
        ):
            await RedisStore(url, namespace="laid-out", layout="compact").open()
    async with Redis(port=redis.port) as server:
        await server.set("newer:layout", "4 layout=spiral")
        with pytest.raises(ConfigurationError, match="the namespace newer has version 4, and this Ackwise knows version 3 alone"):
            await RedisStore(url, namespace="newer").init()
        assert await server.get("newer:layout") == b"4 layout=spiral"


async def test_a_retention_that_the_compact_layout_can_not_keep_is_refused(redis: Server) -> None:
    async with opened(RedisStore(f"redis://127.0.0.1:{redis.port}", namespace="short", layout="compact", retention=60.0)) as store:
        with pytest.raises(ConfigurationError, match="the compact layout remembers 60 s, and 61 s are wanted"):
            await store.exchange(Exchange(claims(keys(1)), retention=61.0))


PASSWORD = "pass%2Fw0rd"
SECRET = "pass/w0rd"
RIGHTS = "+ping +eval +evalsha +time +get +mget +set +del +hget +hset +hlen +pexpire +wait +info +config|get"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Server]:
    """A Redis whose user `worker` may do what the documentation says and no more."""
    with skip_if_missing("Redis"), redis_server(tmp_path, "--appendonly", "yes") as server:
        async with Redis(port=server.port) as direct:
            rules = ["on", f">{SECRET}", "~guarded:*", "resetchannels", "-@all", *RIGHTS.split()]
            await direct.execute_command("ACL", "SETUSER", "worker", *rules)
            await direct.execute_command("ACL", "SETUSER", "idle", "on", f">{SECRET}", "~*", "-@all", "+get", "+set", "+ping")
            await direct.execute_command("ACL", "SETUSER", "default", "off")
        yield server


@pytest.mark.parametrize("layout", ["plain", "compact"])
async def test_the_documented_rights_are_enough(guarded: Server, layout: str) -> None:
    store = from_url(f"redis://worker:{PASSWORD}@127.0.0.1:{guarded.port}?namespace=guarded&layout={layout}")
    assert await store.check() == []
    async with opened(store):
        held, done, back = keys(3)
        await store.exchange(Exchange(claims([held, done, back])))
        result = await store.exchange(
            Exchange(completes=[Complete(done, 1, Outcome.OK)], releases=[Release(back, 1, 2)], renews=[Renew(held, 1)])
        )
        assert {*result.completes, *result.releases, *result.renews} == {Ack.OK}
        assert (await store.exchange(Exchange(claims([done])))).claims == [AlreadyDone(Outcome.OK)]


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis that speaks TLS only and wants certificates of its clients."""
    port = free_port()
    files = ["--tls-cert-file", certificates.certificate, "--tls-key-file", certificates.key, "--tls-ca-cert-file", certificates.authority]
    options = ["--port", "0", "--tls-port", str(port), *map(str, files), "--tls-auth-clients", "yes"]
    with skip_if_missing("Redis"), running(redis_server_of(tmp_path_factory.mktemp("encrypted"), *options, port=port)) as server:
        yield server


async def test_tls_is_verified_and_both_sides_show_certificates(certificates: Certificates, encrypted: Server) -> None:
    mine = f"cert={certificates.certificate}&key={certificates.key}"
    url = f"rediss://127.0.0.1:{encrypted.port}?ca={certificates.authority}&{mine}"
    async with opened(from_url(url)) as store:
        assert (await store.exchange(Exchange(claims(keys(3))))).claims == [Acquired(1)] * 3
    with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(.+\); name the authority that signed it with ca="):
        await from_url(url.replace(str(certificates.authority), str(certificates.stranger))).open()
    with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(Hostname mismatch"):
        await from_url(url.replace("127.0.0.1", "localhost")).open()


async def test_no_tls_at_a_port_that_wants_it_is_told_of(encrypted: Server) -> None:
    with pytest.raises(StoreUnavailable, match=rf"redis://127\.0\.0\.1:{encrypted.port}: the connection broke"):
        await RedisStore(f"redis://127.0.0.1:{encrypted.port}", timeout=2.0).open()


async def test_a_socket_of_this_machine_is_used(tmp_path: Path) -> None:
    path = Path("/tmp") / f"ackwise-{os.getpid()}.sock"  # shorter than the names of pytest's folders
    with skip_if_missing("Redis"), redis_server(tmp_path, "--unixsocket", str(path)):
        async with opened(from_url(f"redis+unix://{path}?timeout=2")) as store:
            assert (await store.exchange(Exchange(claims(keys(3))))).claims == [Acquired(1)] * 3
    path.unlink(missing_ok=True)
    with pytest.raises(StoreUnavailable, match="the socket is not there; start Redis, or correct the path"):
        await from_url(f"redis+unix://{path}").open()
