"""What a server's clock calls forgotten is deleted for good only while another clock says the same."""

from __future__ import annotations

import os
import time
from typing import Any, cast

import pytest
from tests.stores.cases import case
from tests.stores.dialects import SQLDatabase

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.storage.claimstore import AlreadyDone, Claim, ClaimKey, Complete, Exchange, MaintainedStore, Outcome
from ackwise.middleware.storage.transaction import Finish
from ackwise.plugin.registry import open_inbox, open_store
from ackwise.stores.sql.schema import refuse_jumped

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


async def test_a_cleanup_of_claims_or_of_an_inbox_by_a_clock_that_jumped_deletes_nothing(
    sql: SQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten, kept = (ClaimKey(os.urandom(16), day, 1) for day in (None, 19_000))
    store, inbox = cast(MaintainedStore, open_store(sql.url())), cast(Any, open_inbox(sql.url()))
    await store.open()
    await store.exchange(Exchange(completes=[Complete(forgotten, 1, Outcome.OK)], retention=0.0))
    await store.exchange(Exchange(completes=[Complete(kept, 1, Outcome.OK)]))
    await inbox.open()
    async with inbox.begin(retention=60.0) as transaction:
        await transaction.claim([forgotten])
        await transaction.finish([Finish(forgotten, ("orders", 0, 1), 7, Outcome.OK, 1)])
    await sql.execute(f"UPDATE ackwise_inbox SET kept_until = {sql.days.format('kept_until', -1)}")
    real = time.time
    for shift in (2 * 86400.0, -2 * 86400.0):  # as seen from here, the server's clock jumped the other way
        monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
        for cleanup in (store.cleanup, inbox.cleanup):
            with pytest.raises(StoreUnavailable, match=REFUSAL):
                await cleanup()
    monkeypatch.setattr(time, "time", real)
    assert (await store.cleanup(), await inbox.cleanup()) == (1, 1)
    assert (await store.exchange(Exchange([Claim(kept, 2)]))).claims == [AlreadyDone(Outcome.OK)]
    await store.close()
    await inbox.close()
