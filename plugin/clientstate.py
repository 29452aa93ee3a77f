"""What aiokafka's consumer keeps to itself and the host must know: where it stands, whether it still works, and how to be rid of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, cast

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.log import Log, said
from ackwise.plugin.bounded import ended

__all__ = [
    "buffered",
    "has_left_the_group",
    "has_stopped_fetching",
    "has_stopped_sending",
    "leave",
    "look_for_topics",
    "missing_topics",
    "position_of",
    "revive",
]

log = Log()

#: Seconds for closing the connections of a client that could not leave its group.
_CLOSE_TIMEOUT: Final = 0.5


def position_of(consumer: Any, partition: TopicPartition) -> int | None:
    """The client's position, without waiting for one; `None` while it has none."""
    assignment = consumer._subscription.subscription and consumer._subscription.subscription.assignment
    state = assignment and assignment.state_value(partition)
    return cast(int, state.position) if state and state.has_valid_position else None


def missing_topics(consumer: Any) -> list[str]:
    """The topics that `consumer` is subscribed to and whose partitions it does not know."""
    cluster = consumer._client.cluster
    return sorted(topic for topic in consumer.subscription() if not cluster.partitions_for_topic(topic))


def look_for_topics(consumer: Any) -> None:
    """Let the client ask for its metadata now, which it would do every five minutes; what is new makes the group join anew."""
    consumer._client.force_metadata_update()


def has_left_the_group(consumer: Any) -> bool:
    """Whether the task that keeps the membership has ended: nothing begins it anew."""
    task = getattr(consumer._coordinator, "_coordination_task", None)
    return task is not None and bool(task.done())


def has_stopped_fetching(consumer: Any) -> bool:
    """Whether the client's own task that fetches has ended."""
    return bool(consumer._fetcher._fetch_task.done())


def has_stopped_sending(producer: Any) -> bool:
    """Whether a producer's own task that sends, or that learns where to, has ended: nothing begins it anew, and each send waits in vain."""
    tasks = producer._sender.sender_task, producer.client._sync_task
    return any(task is not None and task.done() for task in tasks)


def buffered(consumer: Any) -> list[TopicPartition]:
    """The partitions of which the client has records, or an error, that nobody has taken."""
    return list(consumer._fetcher._records)


def revive(consumer: Any) -> BaseException | None:
    """Begin the client's own task that fetches anew if it has ended, and return what ended it: it would never fetch again."""
    fetcher = consumer._fetcher
    if not (ended := fetcher._fetch_task).done():
        return None
    for task in fetcher._pending_tasks:
        task.cancel()
        task.add_done_callback(_take_note)
    fetcher._pending_tasks.clear()  # the new one would wait for what failed, and fail of it again
    fetcher._fetch_task = asyncio.create_task(fetcher._fetch_requests_routine())
    return asyncio.CancelledError() if ended.cancelled() else ended.exception() or asyncio.CancelledError()


async def leave(consumer: Any, *, within: float) -> None:
    """Leave the group and close the connections, in about so many seconds. Who can't say goodbye is missed when its session is over."""
    why = f"no answer within {within:.1f} s"
    try:
        if await ended(consumer.stop(), within=within):
            return
    except (KafkaError, OSError) as error:
        why = said(error)
    log.warning("the group could not be left in order, the broker misses this member when its session is over", error=why)
    with suppress(KafkaError, OSError):
        await ended(consumer._client.close(), within=_CLOSE_TIMEOUT)


def _take_note(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
