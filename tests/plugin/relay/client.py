"""A cluster with delay topics in memory, and a client of it that takes what aiokafka takes and comes to the same harm."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

__all__ = ["Client", "Cluster"]


#: The number of the request.
METADATA = 3


class Cluster:
    """Records by partition, what the group committed, and what each request is answered. `harm` may raise for a call, after it moved."""

    def __init__(self, topics: Iterable[str], partitions: int = 1) -> None:
        self.partitions = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
        self.logs: dict[TopicPartition, list[Any]] = defaultdict(list)
        self.committed: dict[TopicPartition, int] = {}
        self.beside: dict[TopicPartition, str] = {}  #: the metadata of commits
        self.topic_id = 1
        self.error_code = 0  #: of the coordinator's whole answer
        self.unreadable: dict[tuple[TopicPartition, int], BaseException] = {}  #: raised when this record is come to
        self.drops: Callable[[], bool] = lambda: False  #: whether what was drained is lost without a word
        self.harm: Callable[[str], None] = lambda call: None
        self.asked: Counter[str] = Counter()
        self.clients: list[Client] = []

    def write(self, partition: TopicPartition, value: bytes | None, headers: Any, timestamp: int, timestamp_type: int = 0) -> None:
        log = self.logs[partition]
        log.append(SimpleNamespace(
            topic=partition.topic, partition=partition.partition, offset=len(log), timestamp=timestamp, timestamp_type=timestamp_type,
            key=b"k", value=value, headers=headers,
        ))  # fmt: skip

    def client(self) -> Client:
        self.clients.append(Client(self))
        return self.clients[-1]


class Client:
    """A consumer of `cluster`, as much of it as the relay uses. It has all partitions as soon as it is started."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._listener: Any = None
        self.positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self.seeks: list[tuple[TopicPartition, int]] = []
        self._polls = 0
        self.is_stopped = False
        self.is_closed = False
        self._coordinator = self._client = self
        self._coordination_task: Any = None
        self._fetcher = SimpleNamespace(
            _fetch_task=asyncio.get_running_loop().create_future(),
            _pending_tasks=(),
            _records=cluster.logs,
            _client=self,
            _retry_backoff=0.0,
            _fetch_max_wait_ms=500,
        )
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda partition: 1,
            brokers=lambda: {1},
            partitions_for_topic=lambda topic: {partition.partition for partition in cluster.partitions if partition.topic == topic},
        )
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=SimpleNamespace(state_value=self._state)))

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self._listener = listener

    def force_metadata_update(self) -> asyncio.Future[bool]:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done

    def subscription(self) -> Collection[str]:
        return {partition.topic for partition in self._cluster.partitions}

    async def start(self) -> None:
        self._call("start")
        await self._listener.on_partitions_assigned(self._cluster.partitions)

    async def stop(self) -> None:
        self.is_stopped = True
        self._call("stop")
        await self.close()

    async def close(self) -> None:
        self.is_closed = True

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None) -> dict[TopicPartition, Any]:
        """As aiokafka: partitions are drained one after another, and where one raises, what was drained is forgotten."""
        self._call("getmany")
        await asyncio.sleep(0)
        drained: dict[TopicPartition, list[Any]] = {}
        for partition in partitions or self._cluster.partitions:
            position = self.positions.get(partition)
            if position is None or partition in self._paused:
                continue
            for record in self._cluster.logs[partition][position : position + (max_records or 500)]:
                if (error := self._cluster.unreadable.get((partition, record.offset))) is not None:
                    raise error
                drained.setdefault(partition, []).append(record)
            if partition in drained:
                self.positions[partition] = drained[partition][-1].offset + 1
        self._call("drained")
        return {} if self._cluster.drops() else drained

    def last_poll_timestamp(self, partition: TopicPartition) -> int:
        self._polls += 1
        return self._polls

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.seeks.append((partition, offset))
        self.positions[partition] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused.difference_update(partitions)

    def paused(self) -> set[TopicPartition]:
        return set(self._paused)

    def assignment(self) -> Collection[TopicPartition]:
        return self._cluster.partitions

    async def commit(self, offsets: Mapping[TopicPartition, Any]) -> None:
        self._call("commit")
        self._cluster.committed.update({partition: each.offset for partition, each in offsets.items()})
        self._cluster.beside.update({partition: each.metadata for partition, each in offsets.items()})

    async def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._call("starts")
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._call("ends")
        return {partition: len(self._cluster.logs[partition]) for partition in partitions}

    def _state(self, partition: TopicPartition) -> Any:
        return SimpleNamespace(position=self.positions.get(partition), has_valid_position=partition in self.positions)

    async def _maybe_wait_metadata(self) -> None: ...

    async def send(self, node: int, request: Any) -> Any:
        """Where the logs end, whatever transaction is open, or which topics there are."""
        if request.API_KEY == METADATA:
            return self._say_topics(request)
        topics = [
            (topic, [(number, 0, -1, len(self._cluster.logs[TopicPartition(topic, number)])) for number, _ in partitions])
            for topic, partitions in request._topics
        ]
        return SimpleNamespace(API_VERSION=2, topics=topics)

    def _say_topics(self, request: Any) -> Any:
        topics = [
            {"error_code": 0, "topic": topic, "topic_id": uuid.UUID(int=self._cluster.topic_id), "partitions": [{}]}
            for _, topic, _ in request._topics
        ]
        return SimpleNamespace(to_object=lambda: {"topics": topics})

    async def ensure_coordinator_known(self) -> None: ...

    def coordinator_dead(self) -> None: ...

    async def _send_req(self, request: Any) -> Any:
        self._call("committed")
        by_topic = defaultdict(list)
        for topic, number in [] if self._cluster.error_code else self._cluster.partitions:
            by_topic[topic].append(
                (number, self._cluster.committed.get(place := TopicPartition(topic, number), -1), self._cluster.beside.get(place, ""), 0)
            )
        return SimpleNamespace(error_code=self._cluster.error_code, topics=list(by_topic.items()))

    def _call(self, call: str) -> None:
        self._cluster.asked[call] += 1
        self._cluster.harm(call)
