"""Gives each message its own database session: run it with `ackwise run session:app` in this folder.

The first middleware used is the outermost: `timed` sees the commit of `in_session` as well. It reads the topic `payments` at
`localhost:9092`, and writes to ledger.db; ACKWISE_BROKERS names other brokers.
"""

import sqlite3
import time
from contextlib import closing
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

from ackwise import CONSUME_LATER, App, CallNext, ConsumeLater, Message


class Payment(BaseModel):
    """What a producer writes to `payments`, as JSON."""

    account: str
    amount: int


#: The session of the message that is being handled. One per task, so messages of other partitions have theirs.
session: ContextVar[sqlite3.Connection] = ContextVar("session")


async def timed(message: Message[Any], call_next: CallNext) -> object:
    """Say how long a message took, whatever became of it."""
    started = time.perf_counter()
    try:
        return await call_next(message)
    finally:
        print(f"{message.topic}/{message.partition}/{message.offset} took {time.perf_counter() - started:.3f} s", flush=True)


async def in_session(message: Message[Any], call_next: CallNext) -> object:
    """Commit what the handler did if it succeeded; closing the session without a commit rolls back."""
    with closing(sqlite3.connect("ledger.db")) as connection:  # with an async driver: `async with pool.acquire()`
        token = session.set(connection)
        try:
            said = await call_next(message)
        finally:
            session.reset(token)
        if said is not CONSUME_LATER:
            connection.commit()
        return said


with closing(sqlite3.connect("ledger.db")) as setup:
    setup.execute("CREATE TABLE IF NOT EXISTS entries (account TEXT, amount INTEGER)")

app = App("accounts")
app.use(timed, in_session, ConsumeLater(3, levels="1s 10s"))


@app.agent("payments")
async def book(message: Message[Payment]) -> None:
    """Book a payment. What was written before the error is gone with it."""
    session.get().execute("INSERT INTO entries VALUES (?, ?)", (message.value.account, message.value.amount))
    if message.value.amount < 0 and message.attempt == 1:
        raise ValueError("the account is closed for a moment")
