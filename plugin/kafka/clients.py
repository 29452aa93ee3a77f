"""Opening and closing aiokafka clients, and probing whether any broker answers.

A client is closed in bounded time whatever ends it, even in the middle of its start. The probe tells an outage from a message that
can't be sent.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from aiokafka.errors import KafkaConnectionError

from ackwise.middleware.log import Log, said
from ackwise.plugin.kafka import aiokafkainternals, protocolrequests, recordbatches
from ackwise.plugin.kafka.aiokafkainternals import AIOKafkaClient, tear_down
from ackwise.plugin.kafka.kafkaerrors import NotLetIn, find_refusal
from ackwise.plugin.kafka.protocolrequests import AIOKAFKA
from ackwise.plugin.kafka.throttling import watch_throttling
from ackwise.plugin.kafka.timeouts import answer

ClientT = TypeVar("ClientT")

log = Log()

#: Seconds for a client to say goodbye, and then for closing its connections.
_LEAVE: Final = 2.0
_CLOSE: Final = 1.0

#: What aiokafka calls the connection that it asks for the brokers first. It closes it when that answers or fails, and forgets it otherwise.
_FIRST_CONNECTION: Final = "bootstrap_conn"

#: What aiokafka says, in an assertion, of a mechanism that needs Kerberos.
_NO_KERBEROS: Final = "gssapi library required"


def require_known() -> None:
    """Raise `ConfigurationError` if the installed aiokafka lacks a name that is used here. It is looked up once, in milliseconds."""
    AIOKAFKA.require({**aiokafkainternals.NAMES, **recordbatches.NAMES, **protocolrequests.NAMES})


async def start(client: Any) -> None:
    """Start `client`. Raise what it raises, `NotLetIn` if brokers refuse it, and as `require_known`.

    No connection is left open.
    """
    require_known()
    try:
        with first_connection_closed():
            await client.start()
        watch_throttling(client)
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
        await asyncio.sleep(0)  # stopped before its tasks have started, the client gives up half-way
        yield client
    finally:
        await close_consumer(client, within=_LEAVE)


async def close_consumer(client: Any, *, within: float) -> BaseException | None:
    """Close a consumer, which leaves its group, a producer or an admin client, for at most `within` seconds and one more.

    Return what kept it from closing by itself, if anything did. Raise nothing of the client's.

    aiokafka gives up half-way where one of its requests failed: its `Fetcher.close` raises what these end with, cancellation
    included, and neither its connections nor its heartbeats end then. Asked again it does nothing, and says that it is closed.
    """
    try:
        await answer((client.stop if hasattr(client, "stop") else client.close)(), within=within)
    except Exception as error:  # noqa: BLE001  # it can't be fixed here, and the broker misses a member that said no goodbye
        log.debug("a Kafka client did not close by itself", error=said(error))
        return error
    finally:
        await tear_down(client, within=_CLOSE)
    return None


#: Seconds for the brokers to say who they are, and for the connection to close.
_ANSWER, _CLOSE_PROBE = 5.0, 1.0


async def brokers_answer(brokers: str, client_id: str, options: Mapping[str, object]) -> bool:
    """Return whether one of `brokers` says within a few seconds which brokers there are. Raises nothing of the client's."""
    given: dict[str, Any] = dict(options)
    client = AIOKafkaClient(bootstrap_servers=brokers, client_id=f"{client_id}-outbox", **given)
    try:
        with first_connection_closed():
            await answer(client.bootstrap(), within=_ANSWER)
    except Exception:  # noqa: BLE001  # whatever it was, no broker has answered
        return False
    finally:
        await close_consumer(client, within=_CLOSE_PROBE)
    return True
