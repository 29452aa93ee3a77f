"""Closing a consumer of aiokafka in bounded time, whatever it does meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer

__all__ = ["close_consumer"]

log = Log()

#: Seconds for closing connections.
_CLOSE: Final = 1.0

#: The tasks of a client, by the part that has them. One that is left sends heartbeats for a member that nobody feeds.
_TASKS: Final = {
    "_coordinator": ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task"),
    "_fetcher": ("_fetch_task",),
    "_sender": ("_sender_task",),
}


class _Closed(dict[Any, Any]):
    """Connections of a closed client. One that comes after that, since a request was under way or is made still, is closed at once."""

    def __setitem__(self, key: Any, connection: Any) -> None:
        connection.close()
        super().__setitem__(key, connection)


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
        await _tear_from(client)
    return None


async def _tear_from(client: Any) -> None:
    tasks = [getattr(getattr(client, part, None), name, None) for part, names in _TASKS.items() for name in names]
    tasks += getattr(getattr(client, "_fetcher", None), "_pending_tasks", ())
    for task in tasks:
        if task is not None and not task.done():
            task.cancel()
            task.add_done_callback(_take_note)
    connections = getattr(client, "client", None) or getattr(client, "_client", None)
    if connections is None:
        return
    connections._conns = _Closed(getattr(connections, "_conns", {}))
    try:
        await answer(connections.close(), within=_CLOSE)
    except Exception as error:  # noqa: BLE001  # see above
        log.debug("the connections of a Kafka client could not be closed", error=said(error))
    finally:
        # It waits for its own task first, and raises what that ended with.
        for connection in list(connections._conns.values()):
            connection.close()


def _take_note(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # asyncio need not say that nobody took it
