"""A Redis that has forgotten says so in one line: flushed, failed over, or put back."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.shared import SharedServer
from tests.stores.cases import case
from tests.stores.redis.asking import claims, completes, keys, opened

from ackwise.middleware.storage.claimstore import Exchange
from ackwise.stores.redis import RedisStore
from ackwise.stores.redis.durability import Since, judge

NOW = 1_700_000_000.0


def test_a_memory_that_is_gone_or_older_than_it_was_is_noticed() -> None:
    for found, known, since in [
        (None, None, None),  # the first of all
        (Since(100, 200), None, None),  # the first look of this process
        (Since(100, 200), Since(100, 200), None),  # as it was
        (Since(100, 180), Since(100, 200), None),  # seen by a worker with a slow clock
        (Since(100, 160), Since(100, 200), 160),  # put back to a snapshot
        (Since(190, 200), Since(100, 195), 100),  # flushed and started again by another worker
        (None, Since(100, 200), 100),  # flushed
    ]:
        with case(found, known, since):
            written, gone_since = judge(found, known, NOW)
            assert gone_since == since
            assert written.seen == NOW
            assert written.born == (NOW if found is None else found.born)


def test_what_can_t_be_read_counts_as_gone() -> None:
    for text in [b"", b"100", b"100 200 300", b"100 -1", b"soon later", None]:
        with case(text):
            assert Since.of(text) is None
            assert Since.of(str(Since(1, 2)).encode()) == Since(1, 2)


@pytest.mark.servers
async def test_one_line_says_since_when_the_memory_is_gone(redis: SharedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, now = hashlib.blake2b(str(tmp_path).encode(), digest_size=8).hexdigest(), [NOW]
    async with (
        Redis(port=redis.port) as server,
        opened(RedisStore(f"redis://127.0.0.1:{redis.port}", namespace=place)) as store,
    ):
        store._memory._clock = lambda: now[0]
        for _ in range(3):
            now[0] += 11
            await store.exchange(Exchange(completes=completes(keys(1))))
        assert caplog.records == []
        await server.delete(f"{place}:since", f"{place}:layout")
        await store.exchange(Exchange(claims(keys(1))))  # a moment later: it is not asked each time
        assert caplog.records == []
        for _ in range(3):
            now[0] += 11
            await store.exchange(Exchange(claims(keys(1))))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "Redis lost finished keys" in caplog.text
        assert f"server=redis://127.0.0.1:{redis.port}" in caplog.text
        assert await server.get(f"{place}:layout") is not None


@pytest.mark.servers
async def test_a_look_at_the_memory_that_fails_fails_nothing_else(redis: SharedServer, tmp_path: Path) -> None:
    place = hashlib.blake2b(str(tmp_path).encode(), digest_size=8).hexdigest()
    async with Redis(port=redis.port) as server:
        await server.rpush(f"{place}:since", "not", "a", "text")
        async with opened(RedisStore(f"redis://127.0.0.1:{redis.port}", namespace=place)) as store:
            assert len((await store.exchange(Exchange(claims(keys(2))))).claims) == 2
