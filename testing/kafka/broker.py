"""`MemoryKafka`: one broker of Kafka in this process, which clients reach at an address as they reach any.

    connection → frames → faults → requests → cluster: logs, groups, transactions

Requests of one connection are served one after the other, as Kafka serves them; a fetch that waits holds those behind it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from ackwise.plugin.kafka.recordbatches import DefaultRecordBatchBuilder
from ackwise.testing.kafka import frames
from ackwise.testing.kafka.cluster import Cluster
from ackwise.testing.kafka.faults import Fault, Faults
from ackwise.testing.kafka.frames import Serve
from ackwise.testing.kafka.group import Committed, ConsumerGroup
from ackwise.testing.kafka.grouprequests import GroupRequests
from ackwise.testing.kafka.partition import Batch, PartitionLog, Record
from ackwise.testing.kafka.recordrequests import RecordRequests, TransactionRequests
from ackwise.testing.kafka.topicrequests import TopicRequests

When = Literal["before", "after"]
"""Around a request: before it has any effect, or after that and before its answer."""


class MemoryKafka:
    """A Kafka in memory, of one broker, for tests: `async with MemoryKafka() as kafka:`, and clients connect to `kafka.bootstrap`.

    It serves what aiokafka asks: topics and their settings, logs with retention, gaps and transactions, consumer groups with
    rebalances, sessions, static members and fencing, commits with metadata. What is to go wrong is asked of `faults`.

    It has one broker and no replicas, no security, no quotas, no compaction by itself, and neither the new consumer protocol
    (KIP-848) nor share groups. Everything is served by the event loop that it was started in: a test that blocks the loop blocks
    the broker.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        auto_create_topics: bool = False,
        min_session_timeout: float = 6.0,
        max_session_timeout: float = 1800.0,
        longest_fetch: float = 3600.0,
    ) -> None:
        """`clock`: epoch seconds, for timestamps of appends and for retention. Session timeouts outside the bounds are refused.

        `longest_fetch`: seconds that a fetch which finds nothing waits, however long the client is ready to.
        """
        self.faults = Faults()
        #: Awaited before and after each request, with its name, its topics, the id of the client and which of the two it is.
        self.watch: Callable[[str, frozenset[str], str, When], Awaitable[None]] | None = None
        self._cluster = Cluster(clock, auto_create=auto_create_topics)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._failed: Exception | None = None
        self._connections: dict[asyncio.Task[None], str] = {}  #: with the id of the client, once it has said it
        self._serves: Mapping[str, Serve] = {
            **TopicRequests(self._cluster, lambda: self._port).serves,
            **RecordRequests(self._cluster, longest_fetch).serves,
            **GroupRequests(self._cluster, lambda: self._port, (min_session_timeout, max_session_timeout)).serves,
            **TransactionRequests(self._cluster).serves,
        }

    # For tests.

    @property
    def bootstrap(self) -> str:
        """The address for clients, such as `127.0.0.1:34567`; the same after a `stop` and a `start`."""
        if not self._port:
            raise RuntimeError("the in-memory Kafka has no address yet; start it first: async with MemoryKafka() as kafka")
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.faults.clear()
        await self.stop()
        self._cluster.close()
        if self._failed is not None and error is None:
            raise self._failed

    async def start(self) -> None:
        """Serve, with everything that it has kept. Does nothing if it does already."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break all connections, and take no new ones: the broker is unavailable. What is in it stays, and sessions run out meanwhile."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.disconnect()
        if server is not None:
            await server.wait_closed()

    async def disconnect(self, client_id: str = "") -> None:
        """Break all connections, or those of a client and of those whose ids start with its id and a dash; they may connect again."""
        connections = [task for task, client in self._connections.items() if not client_id or _is_of(client, client_id)]
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records, and what groups have committed of it."""
        self._cluster.delete(name)

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of that name."""
        return name in self._cluster.topics

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Make a topic; `max_message_bytes=5000` is its `max.message.bytes`. Raises `TopicAlreadyExistsError` and `InvalidTopicError`."""
        self._cluster.create(name, partitions, {key.replace("_", "."): str(value) for key, value in configs.items()})

    def produce(
        self,
        topic: str,
        *values: bytes | None,
        key: bytes | None = None,
        partition: int = 0,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: float | None = None,
    ) -> list[int]:
        """Append `values` as one record batch; returns their offsets. `timestamp`: epoch seconds, now by default."""
        at = self._cluster.now_ms() if timestamp is None else round(timestamp * 1000)
        builder: Any = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for place, value in enumerate(values):
            builder.append(place, at, key, value, [*headers])
        first = self._cluster.append(topic, partition, Batch(builder.build()))
        return [*range(first, first + len(values))]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the readable records of a topic by partition, or of one partition."""
        logs = self._cluster.topic(topic).partitions
        return [record for log in (logs if partition is None else [self._cluster.log(topic, partition)]) for record in log.records()]

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """The log of a partition, to be looked at, trimmed and made gaps in."""
        return self._cluster.log(topic, partition)

    def group(self, name: str) -> ConsumerGroup:
        """A consumer group: its generation, its members, its offsets. Without members it is empty."""
        return self._cluster.group(name)

    def committed(self, group: str) -> dict[tuple[str, int], Committed]:
        """Return the commits of a group, by topic and partition."""
        return dict(self.group(group).offsets)

    def expire(self, client_id: str) -> None:
        """End the sessions of a client, as if its heartbeats had stayed away, and of those whose ids start with its id and a dash."""
        for group in self._cluster.groups.values():
            for member in group.described()["members"]:
                if _is_of(member["client_id"], client_id):
                    group.expire(member["member_id"])

    def apply_retention(self) -> None:
        """Trim each log by its `retention.ms`, which nothing else does. Whole batches go, the oldest first."""
        for topic in self._cluster.topics.values():
            if (kept := int(topic.config("retention.ms"))) >= 0:
                for log in topic.partitions:
                    log.expire(self._cluster.now_ms() - kept)
        self._cluster.wake()

    # Connections.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # accepted, and stopped before its turn
            writer.transport.abort()
            return
        self._connections[task] = ""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, frames.UnknownRequest, asyncio.CancelledError):
                while True:
                    (length,) = struct.unpack(">i", await reader.readexactly(4))
                    asked = frames.decode(await reader.readexactly(length))
                    self._connections[task] = asked.client_id
                    answer = await self._answer(asked)
                    if answer:
                        writer.write(answer)
                        await writer.drain()
        except Exception as error:  # noqa: BLE001  # our mistake, which a client would take for a bad connection
            self._failed = self._failed or error
        finally:
            del self._connections[task]
            writer.transport.abort()  # what was not sent yet is lost with the connection

    async def _answer(self, asked: frames.Asked) -> bytes:
        """The answer to one request; raises `ConnectionResetError` where it is to be lost."""
        topics = _topics_of(asked.body)
        fault = self.faults.meet(asked.api, topics)
        if fault is not None and fault.how == "held":
            await fault.over()
        if fault is not None and fault.how == "lost request":
            raise ConnectionResetError
        if self.watch is not None:
            await self.watch(asked.api, topics, asked.client_id, "before")
        answer = await self._serves[asked.api](asked, _code_of(fault))
        if self.watch is not None:
            await self.watch(asked.api, topics, asked.client_id, "after")
        if fault is not None and fault.how == "lost answer":
            raise ConnectionResetError
        return b"" if asked.api == "Produce" and asked.body["required_acks"] == 0 else frames.encode(asked, answer)


def _is_of(client: str, client_id: str) -> bool:
    return f"{client}-".startswith(f"{client_id}-")


def _code_of(fault: Fault | None) -> int:
    return 0 if fault is None else fault.code


def _topics_of(body: Mapping[str, Any]) -> frozenset[str]:
    asked: Collection[Any] = body.get("topics") or body.get("create_topic_requests") or ()
    return frozenset(each if isinstance(each, str) else each.get("topic") or each.get("name") or "" for each in asked)
