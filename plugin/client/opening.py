"""Opening of an aiokafka client: it is closed whatever ends it, also in the middle of its start."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from ackwise.plugin.client.closing import close_consumer

__all__ = ["first_connection_closed", "opened", "start"]

ClientT = TypeVar("ClientT")

#: Seconds for a client to say goodbye; then its connections are closed.
_CLOSE: Final = 2.0

#: What aiokafka calls the connection that it asks for the brokers first. It closes it when that answers or fails, and forgets it otherwise.
_FIRST_CONNECTION: Final = "bootstrap_conn"


async def start(client: Any) -> None:
    """Start `client`. Raise what it raises; no connection stays open that nobody knows of."""
    with first_connection_closed():
        await client.start()


@contextmanager
def first_connection_closed() -> Iterator[None]:
    """Close the connection that a client asked first, if its start in this block raises, which is cut short by a cancellation too."""
    try:
        yield
    except BaseException as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if (connection := frame.f_locals.get(_FIRST_CONNECTION)) is not None:
                connection.close()
        raise


@asynccontextmanager
async def opened(client: ClientT) -> AsyncIterator[ClientT]:
    """`client`, started, while the block runs. Raise what its start raises, and nothing of its end."""
    try:
        await start(client)
        await asyncio.sleep(0)  # stopped before its tasks have begun, the client gives up half-way
        yield client
    finally:
        await close_consumer(client, within=_CLOSE)
