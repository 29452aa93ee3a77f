"""Workers that are killed again and again under `Transactional`: every effect is there once."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.servers import RawKafka

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


async def start(*arguments: object) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.failures.transacting", *map(str, arguments)]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL)


async def until(condition: Callable[[], bool], process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(120):
        while not condition():  # another process writes what is waited for
            assert process.returncode is None, f"the worker ended with {process.returncode}"
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("mode", "seed"), [("inbox", 1), ("offsets", 2)])
async def test_every_effect_is_there_once_whenever_the_worker_is_killed(raw_kafka: RawKafka, tmp_path: Path, mode: str, seed: int) -> None:
    topic, group = await raw_kafka.new_topic(partitions=2), raw_kafka.new_group()
    ids = [f"order-{number}" for number in range(1000)]
    for partition in (0, 1):
        await raw_kafka.produce(topic, *(id.encode() for id in ids[partition::2]), partition=partition)
        twice = ids[partition::20] if mode == "inbox" else []  # offsets do not tell what a producer sent twice
        await raw_kafka.produce(topic, *(id.encode() for id in twice), partition=1 - partition)
    shop = tmp_path / "shop.db"
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute("CREATE TABLE effects (id TEXT)")

    def effects() -> Counter[str]:
        with closing(sqlite3.connect(shop, timeout=10)) as connection:
            return Counter(id for (id,) in connection.execute("SELECT id FROM effects"))

    chance = random.Random(seed)
    for share in (100, 400, 700):
        worker = await start(raw_kafka.bootstrap, group, topic, f"sqlite:///{shop}", mode, 0.02)
        await until(lambda: sum(effects().values()) > share, worker)  # noqa: B023  # called before the next turn
        await asyncio.sleep(chance.random() * 0.1)
        worker.kill()
        await worker.wait()
    worker = await start(raw_kafka.bootstrap, group, topic, f"sqlite:///{shop}", mode, 0.0)
    await until(lambda: len(effects()) == len(ids), worker)
    worker.terminate()
    assert await worker.wait() == 0
    assert effects() == Counter(ids)
