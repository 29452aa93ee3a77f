"""Takes orders, and tells Kafka of each that was taken: run `python outbox.py` in this folder, and beside it a relay.

    ackwise relay --outbox sqlite:///shop.db

The order and the message are one transaction in shop.db: an order that is refused is never told of, and no order that was taken is
forgotten, whichever of the two processes is killed, and when. The relay sends to `localhost:9092`; --brokers names other brokers, which
need a topic `taken`.
"""

import asyncio
import json
import sqlite3

from ackwise.stores import SQLiteOutbox

outbox = SQLiteOutbox("shop.db")


async def take(shop: sqlite3.Connection, customer: str, amount: int) -> str:
    """Take an order. One that the customer can't pay breaks the rule of the table: it is rolled back, with the message."""
    async with outbox.transaction(shop):
        shop.execute("UPDATE customers SET credit = credit - ? WHERE name = ?", (amount, customer))
        return outbox.send("taken", json.dumps({"customer": customer, "amount": amount}).encode(), key=customer.encode())


async def main() -> None:
    await outbox.open()
    shop = sqlite3.connect("shop.db", isolation_level=None)
    shop.execute("CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY, credit INTEGER NOT NULL CHECK (credit >= 0))")
    shop.execute("INSERT OR IGNORE INTO customers VALUES ('ann', 100), ('bob', 100)")
    for customer, amount in (("ann", 70), ("bob", 20), ("ann", 50), ("ann", 30)):
        try:
            print(f"{customer} ordered for {amount}: message {await take(shop, customer, amount)}", flush=True)
        except sqlite3.IntegrityError:
            print(f"{customer} can't pay {amount}", flush=True)
    print(f"{(await outbox.status()).waiting} messages are in the outbox", flush=True)
    shop.close()
    await outbox.close()


if __name__ == "__main__":
    asyncio.run(main())
