"""Opening of an aiokafka client: it is closed whatever ends it, also in the middle of its start."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from aiokafka.errors import KafkaConnectionError

from ackwise.plugin.client import internals, rawrecords, requests
from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.refusal import NotLetIn, find_refusal
from ackwise.plugin.client.requests import AIOKAFKA

__all__ = ["first_connection_closed", "opened", "require_known", "start"]

ClientT = TypeVar("ClientT")

#: Seconds for a client to say goodbye; then its connections are closed.
_CLOSE: Final = 2.0

#: What aiokafka calls the connection that it asks for the brokers first. It closes it when that answers or fails, and forgets it otherwise.
_FIRST_CONNECTION: Final = "bootstrap_conn"

#: What aiokafka says, in an assertion, of a mechanism that needs Kerberos.
_NO_KERBEROS: Final = "gssapi library required"


def require_known() -> None:
    """Raise `ConfigurationError` if the installed aiokafka lacks a name that is used here. It is looked up once, in milliseconds."""
    AIOKAFKA.require({**internals.NAMES, **rawrecords.NAMES, **requests.NAMES})


async def start(client: Any) -> None:
    """Start `client`. Raise what it raises, `NotLetIn` if brokers refuse it, and as `require_known`.

    No connection stays open that nobody knows of.
    """
    require_known()
    try:
        with first_connection_closed():
            await client.start()
    except KafkaConnectionError as error:
        if (refusal := await find_refusal(client)) is not None:
            raise refusal from error
        raise
    except AssertionError as error:
        if str(error) != _NO_KERBEROS:
            raise
        raise NotLetIn("sasl_mechanism is GSSAPI, which needs a package that is not installed: pip install gssapi") from error


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
