"""Takes orders, has them paid and ships them, and is killed all the while: run it with `python order_service.py --seconds 60`.

    place → outbox → placed → pay → outbox → paid → ship

An order and its message are one transaction of shop.db. So are a payment, its message, and the mark "done" of the order. Shipping keeps
its own tables in shipping.db, and knows each message by the id that the outbox gave it. The two workers are processes, one of which is
killed every few seconds. In the end the two databases are compared: each order was paid once and shipped once, and nothing else was.

It needs a Kafka at `localhost:9092`; BROKERS names another one. The databases of an earlier run are continued.
"""

import argparse
import asyncio
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pydantic import BaseModel

from ackwise import App, Batch, ConsumeLater, Outbox, Transactional, message_id
from ackwise.stores import SQLiteOutbox

BROKERS = os.environ.get("BROKERS", "localhost:9092")
TOPICS = ("placed", "paid")
CUSTOMERS = ("ann", "bob", "cleo", "dora")
PRICE = 5

SHOP = (
    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS payments (order_id INTEGER NOT NULL)",  # no key: it would hold what is paid twice
    "CREATE TABLE IF NOT EXISTS accounts (customer TEXT PRIMARY KEY, balance INTEGER NOT NULL)",
)
SHIPPING = ("CREATE TABLE IF NOT EXISTS shipments (order_id INTEGER NOT NULL)",)


class Order(BaseModel):
    """What is written to `placed` and to `paid`, as JSON."""

    id: int
    customer: str


# The workers

payments = App("payments", brokers=BROKERS, commit_interval=0.5, session_timeout=6)
payments.use(Transactional("sqlite:///shop.db", key=message_id), Outbox("sqlite:///shop.db"), ConsumeLater(5, levels="1s"))


@payments.agent("placed", max_batch=20)
async def pay(batch: Batch[Order]) -> None:
    """Take the money and say so: both are there once this has returned and its transaction has committed, or neither."""
    for message in batch:
        order = message.value
        batch.connection.execute("UPDATE accounts SET balance = balance - ? WHERE customer = ?", (PRICE, order.customer))
        batch.connection.execute("INSERT INTO payments VALUES (?)", (order.id,))
        await payments.publish("paid", order, key=order.customer, source=message)


shipping = App("shipping", brokers=BROKERS, commit_interval=0.5, session_timeout=6)
shipping.use(Transactional("sqlite:///shipping.db", key=message_id), ConsumeLater(5, levels="1s"))


@shipping.agent("paid", max_batch=20)
async def ship(batch: Batch[Order]) -> None:
    """Ship what was paid; a message that was sent twice has the same id, and is here once."""
    batch.connection.executemany("INSERT INTO shipments VALUES (?)", [(message.value.id,) for message in batch])


# The shop

outbox = SQLiteOutbox("shop.db")


async def place_orders(stop: asyncio.Event) -> None:
    """Take an order after the other, each in one transaction with its message. The relay of a worker sends it."""
    with closing(connect("shop.db")) as connection:
        while not stop.is_set():
            with suppress(sqlite3.OperationalError):  # a worker writes for longer than we wait: nothing was placed
                async with outbox.transaction(connection):
                    customer = random.choice(CUSTOMERS)
                    number = connection.execute("INSERT INTO orders (customer) VALUES (?)", (customer,)).lastrowid
                    order = Order(id=number or 0, customer=customer)
                    outbox.send("placed", order.model_dump_json().encode(), key=customer.encode(), message_id=f"order-{number}")
            await asyncio.sleep(0.02)


def connect(path: str) -> sqlite3.Connection:
    """A connection that waits for others, and starts no transaction by itself."""
    return sqlite3.connect(path, timeout=10.0, isolation_level=None)


def set_up() -> None:
    """Make the tables and open the accounts."""
    for path, statements in (("shop.db", SHOP), ("shipping.db", SHIPPING)):
        with closing(connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for statement in statements:
                connection.execute(statement)
    with closing(connect("shop.db")) as shop:
        shop.executemany("INSERT OR IGNORE INTO accounts VALUES (?, 0)", [(customer,) for customer in CUSTOMERS])


async def create_topics() -> None:
    """Make the topics, unless they are there."""
    admin = AIOKafkaAdminClient(bootstrap_servers=BROKERS)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1) for topic in TOPICS])
    finally:
        await admin.close()


# The comparison


def column(path: str, statement: str) -> list[int]:
    """The only column of a question to a database."""
    with closing(connect(path)) as connection:
        return [number for (number,) in connection.execute(statement)]


def what_is_wrong() -> list[str]:
    """What differs; empty if each order was paid once and shipped once."""
    placed = column("shop.db", "SELECT id FROM orders")
    paid = sorted(column("shop.db", "SELECT order_id FROM payments"))
    shipped = sorted(column("shipping.db", "SELECT order_id FROM shipments"))
    (money,) = column("shop.db", "SELECT sum(balance) FROM accounts")
    wrong = []
    for what, found in (("paid", paid), ("shipped", shipped)):
        if lost := set(placed) - set(found):
            wrong.append(f"{len(lost)} orders were not {what}")
        if len(found) != len(set(found)):
            wrong.append(f"{len(found) - len(set(found))} orders were {what} twice")
        if strange := set(found) - set(placed):
            wrong.append(f"{len(strange)} orders were {what} that nobody placed")
    if money != -PRICE * len(placed):
        wrong.append(f"the accounts are short of {-money}, and {PRICE * len(placed)} was to be paid")
    return wrong


# The kills


@asynccontextmanager
async def workers() -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Both workers at work, by their names; those that are left end in the end."""
    running = {name: await start(name) for name in ("payments", "shipping")}
    try:
        yield running
    finally:
        for worker in running.values():
            worker.send_signal(signal.SIGTERM)
        for worker in running.values():
            await worker.wait()


async def start(name: str) -> asyncio.subprocess.Process:
    """A worker in its own process."""
    command = ["-m", "ackwise.plugin.cli", "run", f"{Path(__file__).stem}:{name}", "--log-level", "error"]
    return await asyncio.create_subprocess_exec(sys.executable, *command)


async def kill_at_random(running: dict[str, asyncio.subprocess.Process], seconds: float) -> int:
    """Kill one of the workers after the other and start it again, for so long; returns how many died."""
    until, killed = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, random.uniform(2.0, 5.0)))
        name = random.choice(list(running))
        running[name].kill()
        await running[name].wait()
        killed += 1
        running[name] = await start(name)
    return killed


async def main(seconds: float, patience: float) -> int:
    """Place orders and kill workers, then wait until the databases agree; returns the exit code."""
    set_up()
    await create_topics()
    await outbox.open()
    stop = asyncio.Event()
    async with workers() as running:
        placing = asyncio.create_task(place_orders(stop))
        killed = await kill_at_random(running, seconds)
        stop.set()
        await placing
        until = time.monotonic() + patience
        while (wrong := what_is_wrong()) and time.monotonic() < until:  # noqa: ASYNC110  # nobody tells when the databases change
            await asyncio.sleep(0.5)
    await outbox.close()
    placed = len(column("shop.db", "SELECT id FROM orders"))
    print(f"{placed} orders, {killed} workers killed: {'; '.join(wrong) or 'each paid once and shipped once'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Orders that are paid once and shipped once, whoever is killed.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long workers are killed")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that the databases may take to agree after that")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.seconds, arguments.patience)))
