"""Closing a consumer of aiokafka in bounded time, whatever it does meanwhile."""

from __future__ import annotations

from typing import Any, Final

from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import tear_down

__all__ = ["close_consumer"]

log = Log()

#: Seconds for closing connections.
_CLOSE: Final = 1.0


async def close_consumer(client: Any, *, within: float) -> BaseException | None:
    """Close a consumer, which leaves its group, a producer or an admin client, for at most `within` seconds and one more.

    Return what kept it from closing by itself, if anything did. Raise nothing of the client's.

    aiokafka gives up half-way where one of its requests failed: its `Fetcher.close` raises what these end with, cancellation
    included, and neither its connections nor its heartbeats end then. Asked again it does nothing, and says that it is closed.
    """
    try:
        await answer((client.stop if hasattr(client, "stop") else client.close)(), within=within)
    except Exception as error:  # noqa: BLE001  # whatever it was, nobody can mend it, and the broker misses a member that said no goodbye
        log.debug("a Kafka client did not close by itself", error=said(error))
        return error
    finally:
        await tear_down(client, within=_CLOSE)
    return None
