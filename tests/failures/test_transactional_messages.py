"""Transactional messages whose sender is killed at each point, on each database: sent if and only if the business has committed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.failures import booking_process, publishing_process
from tests.failures.booking import FileSender, book, drain, read_sent, transaction
from tests.failures.process import WorkerProcess
from tests.failures.test_transactional import Shop, mariadb_shop, postgres_shop, shop, sqlite_shop
from tests.failures.transacting import account_of
from tests.waiting import PATIENCE

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import OutboxStore, RowState
from ackwise.plugin.outbox.checkback import CheckBack, CheckSchedule
from ackwise.plugin.outbox.halfmessages import HalfMessages
from ackwise.plugin.registry import open_outbox

__all__ = ["mariadb_shop", "postgres_shop", "shop", "sqlite_shop"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]  # rows of a process that died are another's once its lease of a second is over

SHOPS = [
    pytest.param("sqlite_shop", id="sqlite"),
    pytest.param("postgres_shop", id="postgres", marks=pytest.mark.servers),
    pytest.param("mariadb_shop", id="mariadb", marks=pytest.mark.servers),
]

#: A check at once, and again as soon as it was answered.
AT_ONCE = CheckSchedule(first=0.0, every=0.001)


class Crash(NamedTuple):
    """A point at which the process ends, and what has to be true in the end."""

    at: str
    step: str  #: what the process has done when it has come there
    is_done: bool
    state: RowState | None  #: None: there never was a row
    sent: int
    checks: int


CRASHES = [
    Crash("before prepare", "opened", False, None, 0, 0),
    Crash("after prepare", "prepared", False, RowState.LOCAL_ROLLBACK, 0, 1),
    Crash("inside the local transaction", "wrote", False, RowState.LOCAL_ROLLBACK, 0, 1),
    Crash("business raises", "marked", False, RowState.LOCAL_ROLLBACK, 0, 0),
    Crash("after local commit, before the mark", "committed", True, RowState.GLOBAL_COMMIT, 1, 1),
    Crash("after LOCAL_COMMIT", "marked", True, RowState.GLOBAL_COMMIT, 1, 0),
    Crash("relay before send", "sending", True, RowState.GLOBAL_COMMIT, 1, 0),
    Crash("relay after ack, before GLOBAL_COMMIT", "acknowledged", True, RowState.GLOBAL_COMMIT, 2, 0),
]


class Desk(NamedTuple):
    """An outbox beside the database of a shop; the same one, but for SQLite."""

    outbox: OutboxStore
    business: OutboxStore
    outbox_url: str
    shop: Shop
    broker: Path

    def check_back(self) -> CheckBack:
        return CheckBack(self.outbox, producer_group="orders", business=self.business, schedule=AT_ONCE, probe_wait=2.0)


@asynccontextmanager
async def desk_of(shop: Shop, folder: Path) -> AsyncIterator[Desk]:
    is_sqlite = shop.url.startswith("sqlite")
    outbox_url = f"sqlite:///{folder}/half.db" if is_sqlite else shop.url
    outbox = open_outbox(outbox_url)
    business = open_outbox(shop.url) if is_sqlite else outbox
    stores = [outbox, business] if is_sqlite else [outbox]
    for store in stores:
        await store.open()
    try:
        yield Desk(outbox, business, outbox_url, shop, folder / "broker.log")
    finally:
        for store in stores:
            await store.close()


async def end_of(main: Callable[..., None], *told: object) -> int:
    """The code with which a process ends that does `main`."""
    return await WorkerProcess(main, told, Path(os.devnull)).wait()


async def check_all(desk: Desk) -> CheckBack:
    """Check until no half message is left."""
    check_back = desk.check_back()
    async with asyncio.timeout(PATIENCE):
        while (await desk.outbox.status()).prepared:
            await check_back.look()
    return check_back


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_a_message_is_sent_if_and_only_if_its_business_is_done_wherever_the_process_dies(shop: Shop, tmp_path: Path) -> None:
    done = list[str]()
    async with desk_of(shop, tmp_path) as desk:
        for number, crash in enumerate(CRASHES):
            id = f"order-{number}"
            told = (desk.outbox_url, shop.url, desk.broker, id, crash.step, crash.at == "business raises")
            assert await end_of(booking_process.main, *told) == -signal.SIGKILL, crash.at
            check_back = await check_all(desk)
            await drain(desk.outbox, FileSender(desk.broker))
            done += [id] * crash.is_done
            assert await shop.effects() == Counter(done), crash.at
            assert await shop.balances() == Counter(each[-1] for each in done), crash.at
            assert [sent for sent in read_sent(desk.broker) if sent[0] == id] == [(id, id)] * crash.sent, f"{crash.at}: under the same id"
            assert await rows_of(desk, id) == ([] if crash.state in (None, RowState.GLOBAL_COMMIT) else [crash.state]), crash.at
            assert check_back.counts.answered == crash.checks, crash.at


async def rows_of(desk: Desk, id: str) -> list[int]:
    """States of the rows of a message, read past the outbox."""
    statement = f"SELECT state FROM ackwise_outbox WHERE message_id = '{id}'"
    if desk.outbox_url == desk.shop.url:
        return [int(state) for (state,) in await desk.shop.ask(statement)]
    with closing(sqlite3.connect(desk.outbox_url.removeprefix("sqlite:///"))) as connection:
        return [int(state) for (state,) in connection.execute(statement).fetchall()]


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_a_local_transaction_that_outlasts_six_checks_is_committed_and_its_message_is_sent_once(shop: Shop, tmp_path: Path) -> None:
    async with desk_of(shop, tmp_path) as desk:
        impatient = CheckBack(desk.outbox, producer_group="orders", business=desk.business, schedule=AT_ONCE, probe_wait=0.02)
        half = HalfMessages(desk.outbox, "orders", desk.business, first_check=0.0)
        async with half.prepare([Outgoing("paid", b"order-1", message_id="order-1")]) as local, transaction(shop.url) as (connection, run):
            await local.barrier(connection)
            await book(run, "order-1")
            async with asyncio.timeout(PATIENCE):
                while impatient.counts.unknown < 6:
                    await impatient.look()
        await check_all(desk)
        await drain(desk.outbox, FileSender(desk.broker))
        assert read_sent(desk.broker) == [("order-1", "order-1")]
    assert await shop.effects() == {"order-1": 1}
    assert (impatient.counts.unknown, impatient.counts.rolled_back) == (6, 0)


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_what_is_never_answered_is_parked_after_its_checks_and_sent_once_it_is_requeued(shop: Shop, tmp_path: Path) -> None:
    async with desk_of(shop, tmp_path) as desk:
        schedule = CheckSchedule(first=0.0, every=0.001, most=3)
        impatient = CheckBack(desk.outbox, producer_group="orders", business=desk.business, schedule=schedule, probe_wait=0.02)
        half = HalfMessages(desk.outbox, "orders", desk.business, first_check=0.0)
        async with half.prepare([Outgoing("paid", b"order-1", message_id="order-1")]) as local, transaction(shop.url) as (connection, run):
            await local.barrier(connection)
            await book(run, "order-1")
            async with asyncio.timeout(PATIENCE):
                while not impatient.counts.parked:
                    await impatient.look()
        (parked,) = await desk.outbox.parked()
        assert (parked.checks, parked.cause) == (3, "3 checks did not tell how its local transaction ended")
        assert await desk.outbox.requeue([parked.id]) == 1
        await drain(desk.outbox, FileSender(desk.broker))
        assert read_sent(desk.broker) == [("order-1", "order-1")]


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_races_of_check_back_and_slow_transactions_leave_nothing_inconsistent(shop: Shop, tmp_path: Path) -> None:
    chance, races = random.Random(50), 100
    is_sqlite = shop.url.startswith("sqlite")  # one writer: a race of one at a time
    side_by_side = asyncio.Semaphore(1 if is_sqlite else 12)
    aborted: set[str] = set()

    async with desk_of(shop, tmp_path) as desk:
        half = HalfMessages(desk.outbox, "orders", desk.business, first_check=0.0)

        async def race(number: int) -> None:
            id = f"order-{number}"
            before, inside = (chance.random() * (0.005 if is_sqlite else 0.06) for _ in range(2))
            async with side_by_side:
                try:
                    async with half.prepare([Outgoing("paid", id.encode(), message_id=id)]) as local:
                        await asyncio.sleep(before)
                        async with transaction(shop.url) as (connection, run):
                            await local.barrier(connection)
                            await run(f"INSERT INTO effects VALUES ('{id}')")
                            await asyncio.sleep(inside)
                            if number % 10 == 7:
                                raise ValueError("no money")
                except (TransactionAborted, ValueError):
                    aborted.add(id)

        schedule = CheckSchedule(first=0.0, every=0.001, most=100_000)
        impatient = CheckBack(desk.outbox, producer_group="orders", business=desk.business, schedule=schedule, probe_wait=0.01)
        racing = asyncio.ensure_future(asyncio.gather(*(race(number) for number in range(races))))
        while not racing.done():
            await impatient.look()
            await asyncio.sleep(0.01)
        await racing
        await check_all(desk)
        await drain(desk.outbox, FileSender(desk.broker))
        sent = [value for _, value in read_sent(desk.broker)]
    committed = set(await shop.effects())
    assert sorted(sent) == sorted(committed), "sent, and each once, if and only if it was committed"
    assert committed | aborted == {f"order-{number}" for number in range(races)}
    assert committed.isdisjoint(aborted)
    assert impatient.counts.rolled_back > 0, "some checks came first"


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_a_batch_that_writes_and_sends_is_killed_between_any_two_statements_and_all_of_it_is_there_once(
    shop: Shop, tmp_path: Path
) -> None:
    broker, every = tmp_path / "broker.log", list[str]()
    for number, step in enumerate(publishing_process.STEPS):
        ids = [f"order-{number}{digit}" for digit in range(5)]
        assert await end_of(publishing_process.main, shop.url, broker, [*every[-2:], *ids], step) == -signal.SIGKILL, step
        assert await end_of(publishing_process.main, shop.url, broker, [*ids, *every[-3:]], "") == 0, step
        every += ids
        assert await shop.effects() == Counter(every)
        assert await shop.balances() == Counter(map(account_of, every))
    sent = read_sent(broker)
    assert dict(sent) == {f"paid-{id}": id for id in every}, "once for each id, behind the consumer's Dedup"
    assert len(sent) > len(every), "the broker acknowledged some that the relay did not live to delete"
