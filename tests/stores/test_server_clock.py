"""What a server's clock calls forgotten is deleted for good only while another clock says the same."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.stores.cases import case
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.store import AlreadyDone, Claim, ClaimKey, Complete, Exchange, MaintainedStore, Outcome
from ackwise.middleware.transaction import Finish
from ackwise.stores.serverclock import refuse_jumped

if TYPE_CHECKING:
    from ackwise.stores.mysql import MySQLStore
    from ackwise.stores.postgres import PostgresStore

REFUSAL = r"its clock is \d+ s (ahead of|behind) that of this machine, so one of them is wrong; nothing was deleted"


def test_a_clock_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for ahead in [-2 * 86400.0, -301.0, 301.0, 2 * 86400.0]:
        with case(ahead):
            monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
            with pytest.raises(StoreUnavailable, match=f"h:1: {REFUSAL}"):
                refuse_jumped(1_700_000_000.0 + ahead, "h:1")


def test_a_clock_that_nearly_agrees_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    for ahead in [-299.0, 0.0, 299.0]:
        with case(ahead):
            monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
            refuse_jumped(1_700_000_000.0 + ahead, "h:1")


async def cleaned_up_only_by_a_clock_that_agrees(cleanup: Callable[[], Awaitable[int]], monkeypatch: pytest.MonkeyPatch) -> bool:
    """With one forgotten record there."""
    real = time.time
    for shift in (2 * 86400.0, -2 * 86400.0):  # as seen from here, the server's clock jumped the other way
        monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
        with pytest.raises(StoreUnavailable, match=REFUSAL):
            await cleanup()
    monkeypatch.setattr(time, "time", real)
    return await cleanup() == 1


@pytest.mark.servers
async def test_a_cleanup_of_claims_in_postgresql_by_a_clock_that_jumped_deletes_nothing(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keeps_what_is_remembered(postgres_store, monkeypatch)


@pytest.mark.servers
async def test_a_cleanup_of_claims_in_mariadb_by_a_clock_that_jumped_deletes_nothing(
    mysql_store: MySQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keeps_what_is_remembered(mysql_store, monkeypatch)


async def keeps_what_is_remembered(store: MaintainedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten, kept = (ClaimKey(os.urandom(16), day, 1) for day in (None, 19_000))
    await store.exchange(Exchange(completes=[Complete(forgotten, 1, Outcome.OK)], retention=0.0))
    await store.exchange(Exchange(completes=[Complete(kept, 1, Outcome.OK)]))
    assert await cleaned_up_only_by_a_clock_that_agrees(store.cleanup, monkeypatch)
    assert (await store.exchange(Exchange([Claim(kept, 2)]))).claims == [AlreadyDone(Outcome.OK)]


@pytest.mark.servers
async def test_a_cleanup_of_an_inbox_in_postgresql_by_a_clock_that_jumped_deletes_nothing(
    postgres_url: str, postgres_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ackwise.stores.postgres import PostgresInbox

    inbox = PostgresInbox(postgres_url)
    await inbox.open()
    key = ClaimKey(os.urandom(16), None, 1)
    async with inbox.begin(retention=60.0) as transaction:
        await transaction.claim([key])
        await transaction.finish([Finish(key, ("orders", 0, 1), 7, Outcome.OK, 1)])
    await postgres_database.execute("UPDATE ackwise_inbox SET kept_until = now() - interval '1 s'")
    assert await cleaned_up_only_by_a_clock_that_agrees(inbox.cleanup, monkeypatch)
    await inbox.close()


@pytest.mark.servers
async def test_a_cleanup_of_an_inbox_in_mariadb_by_a_clock_that_jumped_deletes_nothing(
    mysql: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ackwise.stores.mysql import MySQLInbox

    inbox = MySQLInbox(mysql.url)
    await inbox.open()
    key = ClaimKey(os.urandom(16), None, 1)
    async with inbox.begin(retention=60.0) as transaction:
        await transaction.claim([key])
        await transaction.finish([Finish(key, ("orders", 0, 1), 7, Outcome.OK, 1)])
    await mysql.fetch("UPDATE ackwise_inbox SET kept_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    assert await cleaned_up_only_by_a_clock_that_agrees(inbox.cleanup, monkeypatch)
    await inbox.close()
