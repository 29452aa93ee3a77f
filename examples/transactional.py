"""Books payments exactly once: run it with `ackwise run transactional:app` in this folder.

The balances and the mark "done" are one transaction in bank.db, so a worker that is killed books nothing twice and forgets
nothing. It reads the topic `transfers` at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

import sqlite3
from contextlib import closing

from pydantic import BaseModel

from ackwise import App, Batch, ConsumeLater, Transactional


class Transfer(BaseModel):
    """What a producer writes to `transfers`, as JSON. One that is sent twice has the same `id`."""

    id: str
    source: str
    target: str
    amount: int


with closing(sqlite3.connect("bank.db")) as setup, setup:
    setup.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0))")
    setup.execute("INSERT OR IGNORE INTO accounts VALUES ('ann', 100), ('bob', 100)")

app = App("bank")
app.use(Transactional("sqlite:///bank.db", key=lambda message: message.value.id), ConsumeLater(3, levels="1s 10s"))


@app.agent("transfers", max_batch=100)
async def book(batch: Batch[Transfer]) -> None:
    """Move the money. An overdraft breaks the rule of the table and raises: what was booked with it is rolled back, and run without it."""
    connection: sqlite3.Connection = batch.connection  # with PostgreSQL asyncpg's, whose methods are awaited
    for message in batch:
        transfer = message.value
        connection.execute("UPDATE accounts SET balance = balance - ? WHERE name = ?", (transfer.amount, transfer.source))
        connection.execute("UPDATE accounts SET balance = balance + ? WHERE name = ?", (transfer.amount, transfer.target))
    print("booked", *(message.value.id for message in batch), flush=True)
