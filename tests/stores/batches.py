"""Batches of an inbox, as the tests of all inboxes run them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer

HERE = ("orders", 3, 17)
FINISHED = Finished(Outcome.OK, HERE, 7)

Handler = Callable[[Any], Awaitable[object]]


def keys(count: int) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), None, 1) for _ in range(count)]


def done(asked: Sequence[ClaimKey]) -> list[Finish]:
    return [Finish(key, HERE, 7, Outcome.OK, 1) for key in asked]


async def nothing(connection: Any) -> None: ...


async def consume(inbox: TransactionalStore, asked: Sequence[ClaimKey], handle: Handler = nothing) -> list[TransactionAnswer]:
    """One batch: claim, call `handle` with the connection, finish what was taken."""
    async with inbox.begin(retention=60.0) as transaction:
        answers = await transaction.claim(asked)
        await handle(transaction.connection)
        await transaction.finish(done([key for key, answer in zip(asked, answers, strict=True) if answer == Taken()]))
    return answers


@asynccontextmanager
async def opened(inbox: Any) -> AsyncIterator[Any]:
    """The inbox, open while the block lasts."""
    await inbox.open()
    try:
        yield inbox
    finally:
        await inbox.close()
