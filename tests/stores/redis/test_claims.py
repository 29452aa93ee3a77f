"""The Redis store passes the suite that every store passes, on one server and on a cluster, plain and compact."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis, RedisCluster
from tests.databases.proxy import proxy_to
from tests.databases.server import Server
from tests.shared import SharedServer
from tests.stores.redis.asking import claims, completes, keys, opened

from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    ClaimKey,
    Complete,
    Exchange,
    Outcome,
)
from ackwise.stores.conformance import Features, StoreConformance
from ackwise.stores.redis import RedisStore
from ackwise.stores.redis import script as question


def namespace_of(place: Path) -> str:
    """A namespace for each test alone."""
    return hashlib.blake2b(str(place).encode(), digest_size=8).hexdigest()


@pytest.mark.nightly
class TestRedisStore(StoreConformance):
    features = Features(shared=True, persistent=True, injected_clock=False, owners=True, lease=0.8, retention=2.4)

    @pytest.fixture(autouse=True)
    def on_the_server(self, redis: SharedServer) -> None:
        self.port = redis.port

    def make(self, place: Path, clock: Callable[[], float]) -> RedisStore:
        return RedisStore(f"redis://127.0.0.1:{self.port}", namespace=namespace_of(place))


class OnTheSuitesClock(StoreConformance):
    """The script reads the time from what it is asked, which is the only change to it; so hours pass at once."""

    features = Features(shared=True, persistent=True, owners=True, retention=7200.0)
    layout = "plain"
    url = ""

    @pytest.fixture(autouse=True)
    def with_the_time_in_the_question(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script = question.SCRIPT.replace("redis.call('TIME')", "{math.floor(ARGV[#ARGV] / 1000), ARGV[#ARGV] % 1000 * 1000}")
        assert script != question.SCRIPT
        command = question.Question.command

        def with_time(asked: question.Question, *, whole_script: bool = False) -> tuple[str | int | bytes, ...]:
            return (*command(asked, whole_script=whole_script), round(self.clock() * 1000))

        monkeypatch.setattr(question, "SCRIPT", script)
        monkeypatch.setattr(question, "SCRIPT_NAME", hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest())
        monkeypatch.setattr(question.Question, "command", with_time)

    def make(self, place: Path, clock: Callable[[], float]) -> RedisStore:
        self.clock = clock
        return RedisStore(self.url, namespace=namespace_of(place), layout=self.layout, retention=7200.0)


class TestRedisStoreOverHours(OnTheSuitesClock):
    @pytest.fixture(autouse=True)
    def on_the_server(self, redis: SharedServer) -> None:
        self.url = f"redis://127.0.0.1:{redis.port}"


@pytest.mark.nightly
class TestCompactRedisStoreOverHours(TestRedisStoreOverHours):
    layout = "compact"


@pytest.mark.nightly
class TestCompactRedisClusterStoreOverHours(OnTheSuitesClock):
    layout = "compact"

    @pytest.fixture(autouse=True)
    def on_the_cluster(self, cluster: Sequence[SharedServer]) -> None:
        self.url = f"redis+cluster://127.0.0.1:{cluster[0].port}"


@pytest.fixture
def place(tmp_path: Path) -> str:
    return namespace_of(tmp_path)


@pytest.fixture
async def server(redis: SharedServer) -> AsyncIterator[Redis]:
    """What the tests look into the server with."""
    async with Redis(port=redis.port) as server:
        yield server


async def test_a_cluster_is_asked_once_per_node(own_cluster: Sequence[Server], place: str) -> None:
    async with opened(RedisStore(f"redis+cluster://127.0.0.1:{own_cluster[0].port}", namespace=place)) as store:
        await store.exchange(Exchange(claims(keys(200))))
        servers = [Redis(port=node.port) for node in own_cluster]

        async def asked() -> list[int]:
            return [(await server.info("stats"))["total_reads_processed"] for server in servers]

        before = await asked()
        await store.exchange(Exchange(claims(keys(200))))
        after = await asked()
        assert [b - a for a, b in zip(before, after, strict=True)] == [2, 2, 2]  # and the question itself
        for server in servers:
            await server.aclose()


async def test_a_success_takes_the_place_of_a_death_of_an_earlier_page_of_the_compact_layout(redis: SharedServer, place: str) -> None:
    url = f"redis://127.0.0.1:{redis.port}"
    async with opened(RedisStore(url, namespace=place, layout="compact", retention=7200.0)) as store:
        some = keys(50)
        for outcome, retention, ack in ((Outcome.DEAD, 60.0, Ack.RESTORED), (Outcome.OK, 7200.0, Ack.OK)):
            asked = Exchange(completes=[Complete(key, 1, outcome) for key in some], retention=retention)
            assert (await store.exchange(asked)).completes == [ack] * 50
        assert (await store.exchange(Exchange(claims(some, token=2), retention=7200.0))).claims == [AlreadyDone(Outcome.OK)] * 50


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_eight_workers_in_any_order_of_keys_are_each_answered(
    redis: SharedServer, cluster: Sequence[SharedServer], place: str, scheme: str
) -> None:
    port = redis.port if scheme == "redis" else cluster[0].port
    some = keys(300)
    async with contextlib.AsyncExitStack() as stack:
        url = f"{scheme}://127.0.0.1:{port}"
        stores = [await stack.enter_async_context(opened(RedisStore(url, namespace=place))) for _ in range(8)]
        orders = [random.Random(number).sample(some, len(some)) for number in range(8)]
        asked = [
            store.exchange(Exchange(claims(order, number + 1))) for number, (store, order) in enumerate(zip(stores, orders, strict=True))
        ]
        results = await asyncio.gather(*asked)
    holders = [key for order, result in zip(orders, results, strict=True) for key, answer in zip(order, result.claims, strict=True)
               if isinstance(answer, Acquired)]  # fmt: skip
    assert sorted(holders) == sorted(some)


async def test_many_exchanges_at_once_are_answered_by_a_cluster(cluster: Sequence[SharedServer], place: str) -> None:
    async with opened(RedisStore(f"redis+cluster://127.0.0.1:{cluster[0].port}", namespace=place)) as store:
        results = await asyncio.gather(*(store.exchange(Exchange(claims(keys(3)))) for _ in range(300)))
        assert [result.claims for result in results] == [[Acquired(1)] * 3] * 300


async def test_many_exchanges_at_once_take_few_connections(redis: SharedServer, place: str) -> None:
    async with proxy_to(redis.port) as proxy, opened(RedisStore(f"redis://127.0.0.1:{proxy.port}", namespace=place)) as store:
        results = await asyncio.gather(*(store.exchange(Exchange(claims(keys(3)))) for _ in range(300)))
        assert [result.claims for result in results] == [[Acquired(1)] * 3] * 300
        assert proxy.connections <= 8


@pytest.mark.parametrize("cluster_client", [False, True], ids=["server", "cluster"])
async def test_a_client_that_the_user_has_is_used_and_left_open(
    redis: SharedServer, cluster: Sequence[SharedServer], place: str, cluster_client: bool
) -> None:
    client = RedisCluster(port=cluster[0].port, host="127.0.0.1") if cluster_client else Redis(port=redis.port)
    async with client:
        some = keys(50)
        async with opened(RedisStore(client=client, namespace=place)) as store:
            assert (await store.exchange(Exchange(claims(some)))).claims == [Acquired(1)] * 50
        await client.set("still", "open")
        async with opened(RedisStore(client=client, namespace=place)) as store:
            answers = (await store.exchange(Exchange(claims(some, token=2)))).claims
            assert {type(answer) for answer in answers} == {Busy}
            assert await store.cleanup() == 0


async def test_completed_keys_of_the_compact_layout_are_pages_that_end_with_their_period(
    redis: SharedServer, server: Redis, place: str
) -> None:
    async with opened(RedisStore(f"redis://127.0.0.1:{redis.port}", namespace=place, layout="compact", keys=1800)) as store:
        some = keys(600)
        await store.exchange(Exchange(claims(some)))
        assert len(await server.keys(f"{place}:*")) == 602
        await store.exchange(Exchange(completes=completes(some)))
        pages = [page for page in await server.keys(f"{place}:*") if page not in (f"{place}:layout".encode(), f"{place}:since".encode())]
        assert len(pages) <= 16
        assert sum([await server.hlen(page) for page in pages]) == 600
        ends = [await server.pttl(page) for page in pages]
        assert 86_400_000 <= min(ends) <= max(ends) <= 1.5 * 86_400_000 + 60_000
        assert (await store.exchange(Exchange(claims(some)))).claims == [AlreadyDone(Outcome.OK)] * 600


async def test_redis_itself_deletes_what_is_forgotten(redis: SharedServer, server: Redis, place: str) -> None:
    async with opened(RedisStore(f"redis://127.0.0.1:{redis.port}", namespace=place)) as store:
        held, done = keys(2)
        await store.exchange(Exchange(claims([held, done]), lease=10.0, retention=100.0))
        await store.exchange(Exchange(completes=completes([done]), lease=10.0, retention=100.0))
        ends = sorted([await server.pttl(key) for key in await server.keys(f"{place}:*") if len(key) == len(place) + 17])
        assert [round(end / 1000) for end in ends] == [160, 170]


@pytest.mark.nightly
@pytest.mark.slow  # a hundred thousand messages
@pytest.mark.parametrize(("layout", "most"), [("plain", 170.0), ("compact", 30.0)])
async def test_a_completed_key_takes_little_memory(own_redis: Server, layout: str, most: float) -> None:
    server = Redis(port=own_redis.port)

    async def memory() -> int:
        return int((await server.info("memory"))["used_memory"])

    await server.flushall()
    async with opened(RedisStore(f"redis://127.0.0.1:{own_redis.port}", layout=layout, keys=200_000)) as store:
        some: list[ClaimKey] = []

        async def claim_and_complete(count: int) -> None:
            nonlocal some
            for _ in range(count // 500):
                done, some = some, keys(500)
                await store.exchange(Exchange(claims(some), completes(done)))

        await claim_and_complete(2_000)  # buffers and the script have their size now
        before = await memory()
        await claim_and_complete(100_000)
        taken = (await memory() - before) / 100_000
        assert 10.0 < taken <= most
    await server.flushall()
    await server.aclose()
