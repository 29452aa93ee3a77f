"""What every inbox on a server bears: handlers that break their transaction, workers that come second, and connections that are cut."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Server
from tests.stores.dialects import SQLDatabase
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.plugin.registry import open_inbox

HERE = ("orders", 3, 17)
FINISHED = Finished(Outcome.OK, HERE, 7)
A = "INSERT INTO effects VALUES ('a')"


@pytest.fixture
def postgres(own_postgres: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_postgres


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_mariadb


def keys(count: int) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), None, 1) for _ in range(count)]


def done(asked: Sequence[ClaimKey]) -> list[Finish]:
    return [Finish(key, HERE, 7, Outcome.OK, 1) for key in asked]


async def consume(
    inbox: TransactionalStore, asked: Sequence[ClaimKey], handle: Callable[[Any], Awaitable[object]] | None = None
) -> list[TransactionAnswer]:
    """One batch: claim, call `handle` with the connection, finish what was taken."""
    async with inbox.begin(retention=60.0) as transaction:
        answers = await transaction.claim(asked)
        if handle is not None:
            await handle(transaction.connection)
        await transaction.finish(done([key for key, answer in zip(asked, answers, strict=True) if answer == Taken()]))
    return answers


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[TransactionalStore]:
    inbox = open_inbox(url)
    await inbox.open()
    try:
        yield inbox
    finally:
        await inbox.close()


@pytest.fixture
async def inbox(sql: SQLDatabase) -> AsyncIterator[TransactionalStore]:
    """Of this test alone, beside a table `effects` of texts that are unique."""
    await sql.execute("CREATE TABLE effects (effect VARCHAR(60) PRIMARY KEY)")
    async with opened(sql.url(timeout=2)) as inbox:
        yield inbox


@pytest.fixture
async def proxy(sql: SQLDatabase) -> AsyncIterator[Proxy]:
    async with proxy_to(sql.server.port) as proxy:
        yield proxy


@pytest.fixture
async def far(inbox: TransactionalStore, sql: SQLDatabase, proxy: Proxy) -> AsyncIterator[TransactionalStore]:
    """`inbox` behind the proxy, on one connection that has done a batch."""
    async with opened(sql.url(proxy, timeout=1, max_size=1)) as far:
        await consume(far, keys(1))
        yield far
        proxy.swallow_replies, proxy.cut_after = False, None


def executes(sql: SQLDatabase, *statements: str) -> Callable[[Any], Awaitable[None]]:
    async def handle(connection: Any) -> None:
        await sql.run(connection, *statements)

    return handle


async def effects(sql: SQLDatabase) -> list[str]:
    return [effect for (effect,) in await sql.execute("SELECT effect FROM effects ORDER BY effect")]


async def test_a_handler_that_ends_its_transaction_is_found_out_and_nothing_is_marked(inbox: TransactionalStore, sql: SQLDatabase) -> None:
    for ending in (["COMMIT"], ["ROLLBACK"], ["COMMIT", "BEGIN"], ["ROLLBACK", "BEGIN", "INSERT INTO effects VALUES ('b')"]):
        asked = keys(3)
        with pytest.raises(TransactionAborted, match="the handler ended the transaction"):
            await consume(inbox, asked, executes(sql, *ending))
        assert await consume(inbox, asked) == [Taken()] * 3, ending
    assert await effects(sql) == []


async def test_a_zombie_that_waits_for_the_rows_finds_them_as_the_first_left_them(inbox: TransactionalStore, sql: SQLDatabase) -> None:
    for commits, known in ((True, True), (True, False), (False, True), (False, False)):
        asked = keys(3)
        if known:  # sent back before, so that there is a row to wait for
            async with inbox.begin(retention=60.0) as transaction:
                await transaction.finish([Finish(key, HERE, 7, None, 1) for key in asked])
        async with opened(sql.url(timeout=30)) as zombie:
            began = inbox.begin(retention=60.0)
            transaction = await began.__aenter__()
            assert await transaction.claim(asked) == [Taken()] * 3
            waiting = asyncio.ensure_future(consume(zombie, [*reversed(asked), *keys(1)]))
            await sql.until_somebody_waits()
            await transaction.finish(done(asked))
            if commits:
                await began.__aexit__(None, None, None)
            else:
                await began.__aexit__(RuntimeError, RuntimeError(), None)
            assert await waiting == [FINISHED if commits else Taken()] * 3 + [Taken()], (commits, known)


async def test_a_key_that_is_held_for_too_long_makes_the_inbox_unavailable_and_nobody_goes_on_waiting(
    inbox: TransactionalStore, sql: SQLDatabase
) -> None:
    asked = keys(1)
    async with opened(sql.url(timeout=0.3)) as hasty:
        async with inbox.begin(retention=60.0) as transaction:
            await transaction.claim(asked)
            with pytest.raises(StoreUnavailable, match=r"no answer within 0\.3 s; another transaction may hold a key of this batch"):
                await consume(hasty, asked)
            async with asyncio.timeout(PATIENCE):
                while await sql.is_waited():  # noqa: ASYNC110  # the server's state
                    await asyncio.sleep(0.12)
            await transaction.finish(done(asked))
        assert await consume(hasty, asked) == [FINISHED]


async def test_who_gives_way_in_a_deadlock_is_unavailable_and_the_other_goes_on(inbox: TransactionalStore) -> None:
    first, second = keys(2)
    outcomes: list[object] = []

    async def work(mine: ClaimKey, other: ClaimKey, here: asyncio.Event, there: asyncio.Event) -> None:
        async with inbox.begin(retention=60.0) as transaction:
            await transaction.claim([mine])
            here.set()
            await there.wait()
            outcomes.append(await transaction.claim([other]))

    one, two = asyncio.Event(), asyncio.Event()
    told = await asyncio.gather(work(first, second, one, two), work(second, first, two, one), return_exceptions=True)
    assert outcomes == [[Taken()]]
    (error,) = [answer for answer in told if answer is not None]
    assert isinstance(error, StoreUnavailable)
    assert "deadlock" in str(error)


async def test_batches_that_find_no_connection_wait_and_then_say_what_to_raise(inbox: TransactionalStore, sql: SQLDatabase) -> None:
    async with opened(sql.url(max_size=1, timeout=0.3)) as single:
        async with single.begin(retention=60.0):
            with pytest.raises(StoreUnavailable, match=r"all 1 connections were in use for 0\.3 s; raise max_size"):
                await consume(single, keys(1))
        assert await consume(single, keys(1)) == [Taken()]


async def test_a_statement_that_is_cancelled_in_the_middle_does_not_answer_the_next_batch(
    inbox: TransactionalStore, sql: SQLDatabase
) -> None:
    asked = keys(2)

    async def handle(connection: Any) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await sql.run(connection, A, sql.sleep)
        raise RuntimeError

    async with opened(sql.url(max_size=1)) as single:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await consume(single, asked, handle)
        assert await consume(single, asked, executes(sql, A)) == [Taken()] * 2
        assert await consume(single, asked) == [FINISHED] * 2
    assert await effects(sql) == ["a"]


async def test_a_batch_is_few_round_trips_whatever_its_size(far: TransactionalStore, proxy: Proxy) -> None:
    before = proxy.requests
    await consume(far, keys(100))
    # MariaDB writes what is finished in the trip that commits; asyncpg tidies up.
    assert proxy.requests - before in ((3,) if "mariadb" in repr(far) else (4, 5))


@pytest.mark.parametrize("step", ["begin", "claim", "finish", "commit", "committed", "unanswered"])
async def test_a_connection_that_is_cut_leaves_all_or_nothing_and_the_next_batch_tells(
    far: TransactionalStore, proxy: Proxy, sql: SQLDatabase, step: str
) -> None:
    asked = keys(3)

    def reach(here: str) -> None:
        if here == step:
            proxy.cut()

    async def batch() -> None:
        async with far.begin(retention=60.0) as transaction:
            reach("claim")
            await transaction.claim(asked)
            await sql.run(transaction.connection, A)
            reach("finish")
            await transaction.finish(done(asked))
            reach("commit")
            if step == "committed":
                proxy.cut_after = lambda _: True
            proxy.swallow_replies = step == "unanswered"

    reach("begin")
    if step == "begin":  # nothing was done: the connection is replaced
        await batch()
    else:
        doubt = "it is not known whether it committed; the next claim tells"
        with pytest.raises(StoreUnavailable, match=doubt if step == "unanswered" else r"connection was lost|can't be reached"):
            await batch()
    proxy.cut_after, proxy.swallow_replies = None, False
    came_through = step in ("begin", "committed", "unanswered")
    assert await consume(far, asked) == [FINISHED if came_through else Taken()] * 3
    assert await effects(sql) == (["a"] if came_through else [])


async def test_a_restart_between_two_batches_is_not_noticed_and_a_batch_that_a_kill_cuts_is_rolled_back(
    inbox: TransactionalStore, sql: SQLDatabase
) -> None:
    before, lost = keys(3), keys(3)
    await consume(inbox, before)
    sql.server.restart()

    async def batch() -> None:
        async with inbox.begin(retention=60.0) as transaction:
            assert await transaction.claim([*before, *lost]) == [FINISHED] * 3 + [Taken()] * 3
            await transaction.finish(done(lost))
            sql.server.kill()

    try:
        with pytest.raises(StoreUnavailable):
            await batch()
        with pytest.raises(StoreUnavailable, match="it can't be reached"):
            await consume(inbox, lost)
    finally:
        sql.server.start()
    assert await consume(inbox, lost) == [Taken()] * 3


async def test_a_frozen_server_is_given_up_within_the_timeout_and_used_again(inbox: TransactionalStore, sql: SQLDatabase) -> None:
    asked = keys(3)
    await consume(inbox, keys(1))
    sql.server.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no answer within 2(\.0)? s"):
            await consume(inbox, asked)
        assert time.monotonic() - began < 10.0
    finally:
        sql.server.thaw()
    assert await consume(inbox, asked) == [Taken()] * 3


async def test_the_table_is_made_once_cleaned_and_refused_if_it_is_newer(sql: SQLDatabase) -> None:
    inbox: Any = open_inbox(sql.url())
    (missing,) = await inbox.check()
    assert missing.endswith("the table of the inbox is missing; run `ackwise store init URL`")
    with pytest.raises(ConfigurationError, match="the table of the inbox is missing"):
        await inbox.cleanup()
    makers: list[Any] = [open_inbox(sql.url()) for _ in range(4)]
    await asyncio.gather(*(one.init() for one in makers))
    await inbox.open()
    old, new = keys(300), keys(10)
    await consume(inbox, old)
    await sql.execute(f"UPDATE ackwise_inbox SET kept_until = {sql.days.format('kept_until', -1)}")
    await consume(inbox, new)
    assert (await inbox.check(), await inbox.cleanup(), await inbox.cleanup()) == ([], 300, 0)
    assert await consume(inbox, new) == [FINISHED] * 10
    await inbox.close()
    await sql.execute("UPDATE ackwise_schema SET version = 9")
    for act in (inbox.open, inbox.init, inbox.check, inbox.cleanup):
        with pytest.raises(ConfigurationError, match="its inbox has version 9, and this Ackwise knows version 4"):
            await act()


def test_a_url_that_can_not_work_is_refused() -> None:
    for scheme in ("postgresql", "mysql"):
        for options, why in (
            ("max_siez=3", "did you mean max_size"),
            ("max_size=0", "needs at least one connection"),
            ("timeout=soon", "timeout is 'soon'"),
            ("timeout=0", "timeout is 0.0"),
        ):
            with pytest.raises(ConfigurationError, match=why):
                open_inbox(f"{scheme}://user@host/db?{options}")
    with pytest.raises(ConfigurationError, match="has no option synchronous_commit"):
        open_inbox("postgresql://host/db?synchronous_commit=off")
