"""The Redis store on a cluster whose slots move, whose nodes die and whose replicas take over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.crc import key_slot
from tests.databases.redis import redis_cluster, redis_server
from tests.databases.server import Server, skip_if_missing
from tests.stores.redis.asking import claims, completes, keys, opened, until

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    ClaimAnswer,
    ClaimKey,
    Exchange,
    Outcome,
    Release,
    Stale,
)
from ackwise.stores.redis import RedisStore

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    """Three masters that these tests may break, each of which repairs what it broke."""
    with skip_if_missing("Redis Cluster"), redis_cluster(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


class Reshard:
    """One slot on its way from its master to another one."""

    def __init__(self, nodes: Sequence[Server], slot: int) -> None:
        self._clients: list[Any] = [Redis(port=node.port) for node in nodes]
        self._ports = [node.port for node in nodes]
        self._slot = slot

    async def __aenter__(self) -> Reshard:
        self._ids = [(await client.execute_command("CLUSTER MYID")).decode() for client in self._clients]
        ranges = await self._clients[0].execute_command("CLUSTER SLOTS")
        port = next(int(served[2][1]) for served in ranges if served[0] <= self._slot <= served[1])
        self._from = self._ports.index(port)
        self._to = (self._from + 1) % len(self._ports)
        await self._clients[self._to].execute_command("CLUSTER SETSLOT", self._slot, "IMPORTING", self._ids[self._from])
        await self._clients[self._from].execute_command("CLUSTER SETSLOT", self._slot, "MIGRATING", self._ids[self._to])
        return self

    async def move(self, count: int) -> int:
        """Move up to `count` keys; gives how many there were."""
        source = self._clients[self._from]
        moving = await source.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, count)  # in one word, it would be decoded
        if moving:
            moved = await source.execute_command("MIGRATE", "127.0.0.1", self._ports[self._to], "", 0, 5000, "KEYS", *moving)
            assert moved == b"OK"
        return len(moving)

    async def finish(self) -> None:
        """Move the rest, and tell everybody."""
        while await self.move(1000):
            pass
        for client in (self._clients[self._to], *self._clients):
            await client.execute_command("CLUSTER SETSLOT", self._slot, "NODE", self._ids[self._to])

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.aclose()


def slot_of(store: RedisStore, key: ClaimKey) -> int:
    return key_slot(store._layout.key(key.id))


async def test_keys_of_a_slot_that_moves_are_answered_before_meanwhile_and_afterwards(nodes: Sequence[Server]) -> None:
    async with opened(RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}", namespace="reshard", buckets=1)) as store:
        held, done, back = keys(40), keys(40), keys(40)
        await store.exchange(Exchange(claims([*held, *done, *back])))
        await store.exchange(Exchange(completes=completes(done), releases=[Release(key, 1, 2) for key in back]))
        async with Reshard(nodes, slot_of(store, held[0])) as reshard:
            assert await reshard.move(60) == 60
            fresh = keys(40)
            mixed = await store.exchange(Exchange(claims([*fresh, *held, *done, *back], token=2)))
            assert mixed.claims[:40] == [Acquired(1)] * 40
            assert {type(answer) for answer in mixed.claims[40:80]} == {Busy}
            assert mixed.claims[80:] == [AlreadyDone(Outcome.OK)] * 40 + [Stale()] * 40
            assert (await store.exchange(Exchange(completes=completes(held)))).completes == [Ack.OK] * 40
            await reshard.finish()
        answers = (await store.exchange(Exchange(claims([*held, *done], token=3)))).claims
        assert answers == [AlreadyDone(Outcome.OK)] * 80
        async with opened(RedisStore(f"redis+cluster://127.0.0.1:{nodes[1].port}", namespace="reshard", buckets=1)) as another:
            assert (await another.exchange(Exchange(claims(held, token=3)))).claims == [AlreadyDone(Outcome.OK)] * 40


@pytest.mark.nightly
async def test_a_store_that_has_the_old_map_of_the_slots_finds_the_new_place(nodes: Sequence[Server]) -> None:
    async with opened(RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}", namespace="moved", buckets=1)) as store:
        some = keys(100)
        await store.exchange(Exchange(claims(some)))
        async with Reshard(nodes, slot_of(store, some[0])) as reshard:
            await reshard.finish()
        assert (await store.exchange(Exchange(completes=completes(some)))).completes == [Ack.OK] * 100
        assert (await store.exchange(Exchange(claims(some, token=2)))).claims == [AlreadyDone(Outcome.OK)] * 100


async def test_the_compact_layout_waits_for_a_slot_to_arrive_and_forgets_nothing(nodes: Sequence[Server]) -> None:
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    async with opened(RedisStore(url, namespace="compact-reshard", layout="compact", keys=4000, buckets=1, timeout=2.0)) as store:
        done = keys(200)
        await store.exchange(Exchange(claims(done)))
        await store.exchange(Exchange(completes=completes(done)))
        async with Reshard(nodes, slot_of(store, done[0])) as reshard:
            await reshard.move(3)
            with pytest.raises(StoreUnavailable, match="a slot is on its way to another node"):
                await store.exchange(Exchange(claims(done, token=2)))
            await reshard.finish()
        assert (await store.exchange(Exchange(claims(done, token=3)))).claims == [AlreadyDone(Outcome.OK)] * 200


async def test_of_a_dead_master_only_its_keys_fail(nodes: Sequence[Server]) -> None:
    async with opened(RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}", namespace="dead", buckets=64, timeout=3.0)) as store:
        some = keys(600)
        await store.exchange(Exchange(claims(keys(1))))
        async with RedisCluster(host="127.0.0.1", port=nodes[0].port) as client:
            ports = {key: client.get_node_from_key(store._layout.key(key.id)).port for key in some}  # type: ignore[arg-type, union-attr]  # as in the store
        dead = nodes[2]
        alive = [key for key in some if ports[key] != dead.port]
        assert 0 < len(alive) < len(some)
        dead.kill()
        try:
            assert (await store.exchange(Exchange(claims(alive[:50])))).claims == [Acquired(1)] * 50
            with pytest.raises(StoreUnavailable, match=rf"node 127\.0\.0\.1:{dead.port}: nothing listens there"):
                await store.exchange(Exchange(claims(some)))
            answers = (await store.exchange(Exchange(claims(alive, token=2)))).claims
            assert {type(answer) for answer in answers} == {Busy}  # the living nodes applied their part
            async with opened(RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}", namespace="dead", buckets=64)) as another:
                assert (await another.exchange(Exchange(claims(alive)))).claims == [Acquired(1)] * len(alive)
        finally:
            dead.start()

        async def is_answered() -> bool:
            with contextlib.suppress(StoreUnavailable):
                return (await store.exchange(Exchange(claims(some)))).claims == [Acquired(1)] * len(some)
            return False

        await until(is_answered)


async def test_a_frozen_master_is_named_and_the_others_go_on(nodes: Sequence[Server]) -> None:
    async with opened(RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}", namespace="frozen", buckets=64, timeout=1.0)) as store:
        some = keys(600)
        await store.exchange(Exchange(claims(keys(600))))
        nodes[1].freeze()
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=rf"node 127\.0\.0\.1:{nodes[1].port}: no answer within 1 s"):
                await store.exchange(Exchange(claims(some)))
            assert time.monotonic() - began < 2.0
        finally:
            nodes[1].thaw()
        assert (await store.exchange(Exchange(claims(some)))).claims == [Acquired(1)] * 600


@pytest.mark.nightly
async def test_check_tells_of_slots_that_nobody_serves(nodes: Sequence[Server]) -> None:
    store = RedisStore(f"redis+cluster://127.0.0.1:{nodes[0].port}", namespace="coverage")
    assert all("append-only" in sentence for sentence in await store.check())
    others: list[Any] = [Redis(port=node.port) for node in nodes]
    lost = (await others[0].execute_command("CLUSTER SLOTS"))[0]
    port, slot = int(lost[2][1]), int(lost[0])
    try:
        for other in others:
            await other.execute_command("CLUSTER DELSLOTS", slot)
        found = [sentence for sentence in await store.check() if "append-only" not in sentence]
        assert {sentence.split(": ", 1)[1] for sentence in found} == {"16383 of the cluster's 16384 slots are served; look at CLUSTER INFO"}
    finally:
        for other, node in zip(others, nodes, strict=True):
            if node.port == port:
                await other.execute_command("CLUSTER ADDSLOTS", slot)
        for other in others:
            await other.aclose()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """A cluster of one master and its replica."""
    with skip_if_missing("Redis Cluster"), contextlib.ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
        master, replica = [stack.enter_context(redis_server(tmp_path / name, *options)) for name in ("master", "replica")]
        async with Redis(port=master.port) as first, Redis(port=replica.port) as second:
            await first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            await second.execute_command("CLUSTER MEET", "127.0.0.1", master.port)
            name = bytes(await first.execute_command("CLUSTER MYID") or b"").decode()

            async def knows_it() -> bool:
                return name in str(await second.execute_command("CLUSTER NODES"))

            await until(knows_it)
            await second.execute_command("CLUSTER REPLICATE", name)

            async def is_online() -> bool:
                info = await first.info("replication")
                return bool(info["connected_slaves"]) and info["slave0"]["state"] == "online"

            async def is_served() -> bool:
                infos = [str(await client.execute_command("CLUSTER INFO")) for client in (first, second)]
                return all("cluster_state" in info and "fail" not in info.split("cluster_slots_assigned")[0] for info in infos)

            await until(is_online)
            await until(is_served)
        yield master, replica


async def test_a_replica_that_took_over_is_found_and_what_it_acknowledged_is_there(pair: tuple[Server, Server]) -> None:
    master, replica = pair
    url = f"redis+cluster://127.0.0.1:{master.port},127.0.0.1:{replica.port}"
    async with opened(RedisStore(url, wait=1, wait_timeout=0.5, timeout=3.0)) as store:
        done, held = keys(100), keys(100)
        assert (await store.exchange(Exchange(claims([*done, *held])))).claims == [Acquired(1)] * 200
        assert (await store.exchange(Exchange(completes=completes(done)))).completes == [Ack.OK] * 100
        replica.freeze()
        try:
            with pytest.raises(StoreUnavailable, match=r"0 of 1 replicas acknowledged within 0\.5 s"):
                await store.exchange(Exchange(claims(keys(3))))
        finally:
            replica.thaw()
        master.kill()
        async with Redis(port=replica.port) as second:
            await second.execute_command("CLUSTER FAILOVER", "TAKEOVER")
    answers: list[ClaimAnswer] = []
    async with opened(RedisStore(url, timeout=3.0)) as store:

        async def is_answered() -> bool:
            with contextlib.suppress(StoreUnavailable):
                answers.extend((await store.exchange(Exchange(claims([*done, *held], token=2)))).claims)
            return bool(answers)

        await until(is_answered)
    assert answers[:100] == [AlreadyDone(Outcome.OK)] * 100
    assert {type(answer) for answer in answers[100:]} == {Busy}


@pytest.mark.nightly
async def test_a_store_that_was_open_during_a_fail_over_goes_on_by_itself(pair: tuple[Server, Server]) -> None:
    master, replica = pair
    url = f"redis+cluster://127.0.0.1:{master.port},127.0.0.1:{replica.port}"
    async with opened(RedisStore(url, timeout=3.0)) as store, Redis(port=replica.port) as second:
        some = keys(50)
        await store.exchange(Exchange(claims(some)))
        master.kill()
        with pytest.raises(StoreUnavailable):
            await store.exchange(Exchange(claims(some)))
        await second.execute_command("CLUSTER FAILOVER", "TAKEOVER")

        async def is_answered() -> bool:
            with contextlib.suppress(StoreUnavailable):
                return len((await store.exchange(Exchange(completes=completes(some)))).completes) == 50
            return False

        await until(is_answered)
        assert (await store.exchange(Exchange(claims(some, token=2)))).claims == [AlreadyDone(Outcome.OK)] * 50


async def test_the_documented_rights_are_enough(nodes: Sequence[Server]) -> None:
    rights = "+ping +eval +evalsha +time +get +mget +set +del +hget +hset +hlen +pexpire +wait +info +config|get"
    more = "+cluster|slots +cluster|info +command +asking"
    rules = ["on", ">secret", "~{rights:*", "~rights:layout", "resetchannels", "-@all", *rights.split(), *more.split()]
    for node in nodes:
        async with Redis(port=node.port) as direct:
            await direct.execute_command("ACL", "SETUSER", "worker", "reset", *rules)
    url = f"redis+cluster://worker:secret@127.0.0.1:{nodes[0].port}"
    async with opened(RedisStore(url, namespace="rights", buckets=1)) as store:
        some = keys(60)
        await store.exchange(Exchange(claims(some)))
        async with Reshard(nodes, slot_of(store, some[0])) as reshard:
            await reshard.move(30)
            assert (await store.exchange(Exchange(completes=completes(some)))).completes == [Ack.OK] * 60
            await reshard.finish()
        assert (await store.exchange(Exchange(claims(some)))).claims == [AlreadyDone(Outcome.OK)] * 60
        assert all("append-only" in sentence for sentence in await store.check())
    with pytest.raises(ConfigurationError, match="the user may not do what a claim takes"):
        await RedisStore(url, namespace="elsewhere").open()
