"""A transactional message in a process of its own, one step at a time, so that it can be killed between any two.

Arguments: URL of the outbox, URL of the business database, path of the broker's file, id, `raise` if the business is to fail. It says each
step that it has done, and goes on when it is told to.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.failures.booking import FileSender, book, drain, transaction

from ackwise.middleware.outgoing import Outgoing
from ackwise.plugin.registry import open_outbox
from ackwise.plugin.transactions.halfmessages import HalfMessages


def reach(step: str) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    sys.stdin.readline()


async def work(outbox_url: str, business_url: str, broker: Path, id: str, *, fails: bool) -> None:
    outbox = open_outbox(outbox_url)
    business = outbox if business_url == outbox_url else open_outbox(business_url)
    for store in {outbox, business}:
        await store.open()
    half = HalfMessages(outbox, "orders", business, first_check=0.0)
    reach("opened")
    try:
        async with half.prepare([Outgoing("paid", id.encode(), key=b"k", message_id=id)]) as local:
            reach("prepared")
            async with transaction(business_url) as (connection, run):
                await local.barrier(connection)
                await book(run, id)
                reach("wrote")
                if fails:
                    raise ValueError("no money")
            reach("committed")
    except ValueError:
        pass
    reach("marked")
    await drain(outbox, FileSender(broker, reach))
    reach("done")
    for store in {outbox, business}:
        await store.close()


if __name__ == "__main__":
    outbox_url, business_url, broker, id, *fails = sys.argv[1:]
    asyncio.run(work(outbox_url, business_url, Path(broker), id, fails=bool(fails)))
