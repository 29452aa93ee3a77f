"""Static member (KIP-345): a worker with its own id, which keeps its partitions over a restart.

aiokafka joins under the id and leaves the rest to chance. Two things are added here: of two processes with one id the later one goes
on and the earlier one ends; and partitions that nobody has are given out, since a leader that restarts is told by no broker that it
leads, so that nobody in its group would ever notice a new partition.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log
from ackwise.plugin.kafka.aiokafkainternals import partitions_of, rejoin, replace_assignors, replace_send, static_ids_of
from ackwise.plugin.kafka.protocolrequests import (
    FENCED,
    ConsumerProtocol,
    DescribeGroupsRequest,
    FencedInstanceError,
    HeartbeatRequest,
    named,
)
from ackwise.plugin.kafka.timeouts import answer
from ackwise.plugin.process.supervisor import NUMBER
from ackwise.plugin.topics.groupstate import read_membership

log = Log()

#: Seconds between two looks for partitions without an owner; those found twice are given out.
_LOOK_EVERY: Final = 10.0

#: Seconds for one look.
_WITHIN: Final = 5.0


def instance_of_this_process(instance: str) -> str | None:
    """The id that this process joins with: each of the processes of `ackwise run --workers N` has its number behind it."""
    number = os.environ.get(NUMBER)
    return f"{instance}-{number}" if instance and number else instance or None


class StaticMember:
    """The membership of `consumer`, which is started, has an instance id, and no subscription yet."""

    def __init__(self, consumer: Any, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        ids = static_ids_of(consumer)
        assert ids is not None
        self._group, self._instance = ids
        self._consumer = consumer
        self._sleep = sleep
        self._ended_by: str | None = None
        self._mark = b""
        self._send = replace_send(consumer, self._send_named)
        replace_assignors(consumer, lambda assignor: _MarkedAssignor(assignor, self))

    @classmethod
    def of(cls, consumer: Any) -> StaticMember | None:
        """The one of `consumer`; `None` if it is an ordinary member."""
        return cls(consumer) if static_ids_of(consumer) is not None else None

    @property
    def mark(self) -> bytes:
        """What distinguishes this membership from the one before; brokers make the group join again when it changes."""
        return self._mark

    def require(self) -> None:
        """Raise `AckwiseError` once this process must not go on under its id."""
        if self._ended_by is not None:
            raise AckwiseError(self._ended_by)

    async def keep_covered(self) -> None:
        """Let the group join again whenever a partition that it consumes was without an owner in two looks. Runs until cancelled."""
        before: set[TopicPartition] = set()
        while True:
            await self._sleep(_LOOK_EVERY)
            found = await self._without_owner()
            if still := found & before:
                log.info("partitions without an owner found", group=self._group, partitions=len(still))
                self._mark = b"%d" % time.time_ns()
                rejoin(self._consumer)
                found = set()
            before = found

    async def _without_owner(self) -> set[TopicPartition]:
        """The subscribed partitions that no member of the group has; none while it rebalances, or no broker answers."""
        try:
            described = await answer(self._described(), within=_WITHIN)
            membership = read_membership(described)
        except (KafkaError, OSError):
            return set()
        if membership.state != "Stable":
            return set()
        return partitions_of(self._consumer, self._consumer.subscription()) - membership.owners.keys()

    async def _described(self) -> dict[str, Any]:
        response = await self._send(DescribeGroupsRequest([self._group]))
        group: dict[str, Any] = response.to_object()["groups"][0]
        return group

    async def _send_named(self, request: Any) -> Any:
        """Send a request of the coordinator's as that of this instance.

        Raises `FencedInstanceError` from the first refusal on. A heartbeat waits in place of that: aiokafka would log and repeat it.
        """
        response = None if self._ended_by else await self._tried(named(request, self._instance))
        if self._ended_by is None:
            return response
        if isinstance(request, HeartbeatRequest):
            await asyncio.get_running_loop().create_future()
        raise FencedInstanceError(self._ended_by)

    async def _tried(self, request: Any) -> Any:
        try:
            response = await self._send(request)
        except NotImplementedError:
            self._ended_by = "these brokers know no static members, which Kafka has since version 2.3; leave group_instance_id out"
            return None
        if _is_fenced(response):
            self._ended_by = (
                f"another worker has joined group {self._group!r} with group_instance_id {self._instance!r}, so this one "
                "stops; what it has not committed is delivered to that worker: give each worker its own id"
            )
        return response


class _MarkedAssignor:
    """An assignor whose metadata is the same after a restart, whatever order sets have there, and differs with the mark of its member."""

    def __init__(self, assignor: Any, member: StaticMember) -> None:
        self._assignor = assignor
        self._member = member

    def metadata(self, topics: Sequence[str]) -> Any:
        found = self._assignor.metadata(sorted(topics))
        return found if found.user_data else ConsumerProtocol.METADATA(found.version, found.subscription, self._member.mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._assignor, name)


def _is_fenced(response: Any) -> bool:
    if (code := getattr(response, "error_code", None)) is not None:
        return bool(code == FENCED)
    topics = getattr(response, "topics", ())  # of a commit: an answer for each partition
    return any(each[1] == FENCED for _, partitions in topics for each in partitions)
