"""A transactional message in its own process, one step at a time, so that it can be killed between any two."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.failures.booking import FileSender, book, drain, mortal, transaction

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.plugin.outbox.halfmessages import HalfMessages
from ackwise.plugin.registry import open_outbox


async def _work(outbox_url: str, business_url: str, broker: Path, id: str, dies_at: str, *, fails: bool) -> None:
    reach = mortal(dies_at)
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


def main(outbox_url: str, business_url: str, broker: Path, id: str, dies_at: str, fails: bool) -> None:
    """`fails`: the business raises."""
    asyncio.run(_work(outbox_url, business_url, broker, id, dies_at, fails=fails))
