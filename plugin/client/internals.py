"""Private parts of aiokafka's consumer that the host needs: its position, its tasks, its buffered records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchError
from aiokafka.errors import KafkaConnectionError

__all__ = [
    "buffered",
    "fetch_wait",
    "has_answered",
    "has_left_the_group",
    "has_no_partitions",
    "has_stopped_fetching",
    "has_stopped_sending",
    "hear_assignments",
    "idle_wait",
    "keep_awake",
    "leader_of",
    "learn_topics",
    "look_for_topics",
    "missing_topics",
    "partitions_of",
    "position_of",
    "positions_of",
    "rejoin_if_broken",
    "revive",
    "set_fetch_wait",
    "stands_before_an_error",
    "standing_before_errors",
    "subscribe_instead",
]

#: Milliseconds that the broker keeps a fetch which finds nothing while nothing is expected, at least and at most. What else is asked of
#: that broker, such as the ends of its logs, waits as long.
_IDLE_WAIT, _LONGEST_IDLE_WAIT = 500, 5_000

#: Seconds until the task that learns the metadata begins anew.
_LEARN_AGAIN: Final = 1.0


def position_of(consumer: Any, partition: TopicPartition) -> int | None:
    """The client's position, without waiting for one; `None` while it has none."""
    assignment = consumer._subscription.subscription and consumer._subscription.subscription.assignment
    state = assignment and assignment.state_value(partition)
    return cast(int, state.position) if state and state.has_valid_position else None


def positions_of(consumer: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The client's position of each of `partitions` that has one: `position_of` of many, in a tenth of the time."""
    assignment = consumer._subscription.subscription and consumer._subscription.subscription.assignment
    if not assignment:
        return {}
    states = ((partition, assignment.state_value(partition)) for partition in partitions)
    return {partition: state.position for partition, state in states if state and state.has_valid_position}


def leader_of(consumer: Any, partition: TopicPartition) -> int | None:
    """The broker that leads `partition`, as far as the client knows; -1 for none, `None` if it does not know the partition."""
    return cast("int | None", consumer._client.cluster.leader_for_partition(partition))


def missing_topics(consumer: Any) -> list[str]:
    """The topics that `consumer` is subscribed to and whose partitions it does not know."""
    cluster = consumer._client.cluster
    return sorted(topic for topic in consumer.subscription() if not cluster.partitions_for_topic(topic))


def has_no_partitions(consumer: Any, topic: str) -> bool:
    """Whether the client knows no partition of `topic`, though it has heard of the cluster: it was deleted, or is away for a moment."""
    cluster = consumer._client.cluster
    return bool(cluster.brokers()) and not cluster.partitions_for_topic(topic)


def subscribe_instead(consumer: Any, topics: Iterable[str]) -> bool:
    """Subscribe `consumer`, a member of a group, to `topics` instead, and let the group join anew; return whether that was possible now.

    aiokafka's own `subscribe` forgets the assignment at once, and what is then drained could not be committed. While the group is joining,
    the answer may have partitions of the topics before, which the client takes for an error of its own.
    """
    subscription = consumer._subscription.subscription
    if subscription is None or subscription._reassignment_in_progress:
        return False
    subscription._topics = frozenset(topics)
    consumer._client.set_topics(subscription._topics)
    consumer._coordinator.request_rejoin()
    return True


def partitions_of(consumer: Any, topics: Iterable[str]) -> set[TopicPartition]:
    """The partitions of `topics`, as far as the client knows them."""
    cluster = consumer._client.cluster
    return {TopicPartition(topic, partition) for topic in topics for partition in cluster.partitions_for_topic(topic) or ()}


def hear_assignments(consumer: Any, hear: Callable[[], None]) -> None:
    """Call `hear` whenever `consumer`, which is in no group, has taken the partitions of its topics, and taken them anew.

    aiokafka tells no listener of that, and forgets all positions each time.
    """
    coordinator = consumer._coordinator
    assign = coordinator.assign_all_partitions

    def assign_and_tell(check_unknown: bool = False) -> None:
        before = consumer._subscription.subscription.assignment
        assign(check_unknown)
        if consumer._subscription.subscription.assignment is not before:
            hear()

    coordinator.assign_all_partitions = assign_and_tell


def look_for_topics(consumer: Any) -> asyncio.Future[bool]:
    """Let the client ask for its metadata now, which it would do every five minutes; what is new makes the group join anew.

    Return what ends with the answer of a broker, see `has_answered`.
    """
    return cast("asyncio.Future[bool]", consumer._client.force_metadata_update())


async def learn_topics(consumer: Any, topics: Iterable[str]) -> None:
    """Return once the client was told of all of `topics`: asked about their offsets, it would learn of them one by one, a back-off each."""
    await consumer._client.set_topics(set(topics))


def has_answered(looking: asyncio.Future[bool]) -> bool:
    """Whether `look_for_topics` came to its end with the answer of a broker."""
    return looking.done() and not looking.cancelled() and looking.exception() is None and looking.result()


def has_left_the_group(consumer: Any) -> bool:
    """Whether the task that keeps the membership has ended: nothing begins it anew."""
    task = _coordination_of(consumer)
    return task is not None and task.done()


def raise_group_errors(consumer: Any) -> None:
    """Raise what the coordinator of its group refuses `consumer`, as `getmany` does; Faust does not ask."""
    consumer._coordinator.check_errors()


def rejoin_if_broken(consumer: Any) -> None:
    """Let `consumer` join its group anew if something has ended its heartbeats, or an error the task that learns what was committed.

    Nothing else begins them again, and aiokafka raises that error in each fetch from then on. Heartbeats that were cancelled from
    inside end as if in order; of a member they must not.
    """
    coordinator = consumer._coordinator
    for name, is_over in (("_heartbeat_task", not getattr(coordinator, "member_id", "")), ("_commit_refresh_task", True)):
        task = getattr(coordinator, name, None)
        if task is None or not task.done():
            continue
        if not is_over or (not task.cancelled() and task.exception() is not None):
            coordinator.request_rejoin()


def keep_awake(consumer: Any) -> None:
    """Let `consumer`, which is started, never wait in silence for a task of its own that something has cancelled.

    aiokafka tells those who wait for an assignment of errors alone, and begins the task that learns the metadata only once.
    """

    def fail_waiters(_: asyncio.Task[None]) -> None:
        for waiter in consumer._subscription._assignment_waiters:
            if not waiter.done() and not consumer._closed:
                waiter.set_exception(KafkaConnectionError("the client has left the group by itself"))

    def restart(_: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_later(_LEARN_AGAIN, learn)

    def learn() -> None:  # once, whoever else keeps the same client awake
        if not consumer._closed and client._sync_task is not None and client._sync_task.done():
            if not client._md_update_waiter.done():  # who waits for an answer that never came would wait for the next in minutes
                client._md_update_waiter.set_result(None)
            client._sync_task = asyncio.create_task(client._md_synchronizer())
            client._sync_task.add_done_callback(restart)

    client = consumer._client
    for task, act in ((_coordination_of(consumer), fail_waiters), (getattr(client, "_sync_task", None), restart)):
        if task is not None:
            task.add_done_callback(act)


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


def stands_before_an_error(consumer: Any, partition: TopicPartition) -> bool:
    """Whether the client has an error of `partition` that nobody was told of yet.

    Its position says nothing then: of bytes that are no whole record batch it moves one further without having read anything. And a
    seek would drop the error, so that nobody ever hears of it.
    """
    return isinstance(consumer._fetcher._records.get(partition), FetchError) and position_of(consumer, partition) is not None


def standing_before_errors(consumer: Any) -> set[TopicPartition]:
    """The partitions of which `stands_before_an_error` is true."""
    raising = [partition for partition, found in consumer._fetcher._records.items() if isinstance(found, FetchError)]
    return positions_of(consumer, raising).keys() & raising


def fetch_wait(consumer: Any) -> int:
    """Milliseconds that the broker may keep a fetch which finds nothing."""
    return cast(int, consumer._fetcher._fetch_max_wait_ms)


def set_fetch_wait(consumer: Any, milliseconds: int) -> None:
    """From its next fetch on the broker may keep one that finds nothing for so long."""
    consumer._fetcher._fetch_max_wait_ms = milliseconds


def idle_wait(partitions: int) -> int:
    """Milliseconds for a fetch of so many partitions while nothing is expected of them.

    Each answer names all of them: with thousands that costs more than all the rest of an idle worker.
    """
    return min(max(partitions, _IDLE_WAIT), _LONGEST_IDLE_WAIT)


def revive(consumer: Any) -> BaseException | None:
    """Begin the client's own task that fetches anew if it has ended, and return what ended it: it would never fetch again.

    A client that is being stopped has ended it by itself, and waits for what the task had begun.
    """
    fetcher = consumer._fetcher
    if consumer._closed or not (ended := fetcher._fetch_task).done():
        return None
    for task in fetcher._pending_tasks:
        task.cancel()
        task.add_done_callback(_take_note)
    fetcher._pending_tasks.clear()  # the new one would wait for what failed, and fail of it again
    fetcher._fetch_task = asyncio.create_task(fetcher._fetch_requests_routine())
    return asyncio.CancelledError() if ended.cancelled() else ended.exception() or asyncio.CancelledError()


def _coordination_of(consumer: Any) -> asyncio.Task[None] | None:
    return getattr(consumer._coordinator, "_coordination_task", None)


def _take_note(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
