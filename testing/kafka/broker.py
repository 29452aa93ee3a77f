"""`MemoryKafka`: one broker of Kafka in this process, which clients reach at an address as they reach any.

    connection → frames → faults → one method per request → logs, groups, transactions

Requests of one connection are served one after the other, as Kafka serves them; a fetch that waits holds those behind it.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, Self

from aiokafka.errors import (
    BrokerResponseError,
    CorruptRecordException,
    GroupIdNotFound,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidSessionTimeoutError,
    InvalidTimestampError,
    InvalidTopicError,
    MemberIdRequired,
    MessageSizeTooLargeError,
    NonEmptyGroup,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ackwise.testing.kafka import frames
from ackwise.testing.kafka.batch import Batch, Record
from ackwise.testing.kafka.faults import Fault, Faults
from ackwise.testing.kafka.group import Committed, ConsumerGroup, check_metadata
from ackwise.testing.kafka.partition import PartitionLog
from ackwise.testing.kafka.transactions import Offsets, Transactions

__all__ = ["MemoryKafka", "When"]

#: What a topic says of itself where nothing else was set.
DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}

_NUMBERS: Final = frozenset({"max.message.bytes", "min.insync.replicas", "retention.bytes", "retention.ms"})

#: Milliseconds that the time of a record may be ahead of the broker's (Kafka: `message.timestamp.after.max.ms`, KIP-1030).
_AHEAD: Final = 3_600_000

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_LATEST, _EARLIEST = -1, -2

_NODE: Final = 1

_OF_TOPIC: Final = 2
"""The type of a resource that is a topic."""

When = Literal["before", "after"]
"""Around a request: before it has any effect, or after that and before its answer."""

_Values = Mapping[str, Any]
_Answer = dict[str, Any]


class InvalidRecordError(BrokerResponseError):
    """A record that its topic does not take; aiokafka has no name for it."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The broker failed to validate this record."


class _Topic:
    def __init__(self, partitions: int, configs: Mapping[str, str]) -> None:
        self.partitions = [PartitionLog() for _ in range(partitions)]
        self.configs = dict(configs)

    def config(self, name: str) -> str:
        return self.configs.get(name, DEFAULTS.get(name, ""))


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
        #: Awaited before and after each request, with its name, the id of the client and which of the two it is.
        self.watch: Callable[[str, str, When], Awaitable[None]] | None = None
        self._clock = clock
        self._auto_create = auto_create_topics
        self._sessions = min_session_timeout, max_session_timeout
        self._longest_fetch = longest_fetch
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, ConsumerGroup] = {}
        self._transactions = Transactions(self._log_of, self._commit_of_transaction, self._now_ms, self._wake)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._failed: Exception | None = None
        self._connections: dict[asyncio.Task[None], str] = {}  #: with the id of the client, once it has said it
        self._grown = asyncio.Event()
        self._serve: dict[str, Callable[[frames.Asked, int], Awaitable[_Answer]]] = {
            "ApiVersions": self._api_versions,
            "Metadata": self._metadata,
            "CreateTopics": self._create_topics,
            "DeleteTopics": self._delete_topics,
            "CreatePartitions": self._create_partitions,
            "DescribeConfigs": self._describe_configs,
            "AlterConfigs": self._alter_configs,
            "DeleteRecords": self._delete_records,
            "Produce": self._produce,
            "Fetch": self._fetch,
            "ListOffsets": self._list_offsets,
            "FindCoordinator": self._find_coordinator,
            "JoinGroup": self._join_group,
            "SyncGroup": self._sync_group,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave_group,
            "OffsetCommit": self._offset_commit,
            "OffsetFetch": self._offset_fetch,
            "ListGroups": self._list_groups,
            "DescribeGroups": self._describe_groups,
            "DeleteGroups": self._delete_groups,
            "InitProducerId": self._init_producer_id,
            "AddPartitionsToTxn": self._add_partitions_to_txn,
            "AddOffsetsToTxn": self._add_offsets_to_txn,
            "TxnOffsetCommit": self._txn_offset_commit,
            "EndTxn": self._end_txn,
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
        self._transactions.close()
        for group in self._groups.values():
            group.close()
        if self._failed is not None and error is None:
            raise self._failed

    async def start(self) -> None:
        """Serve, with everything that it has kept. Does nothing if it does already."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break all connections, and take no new ones: the broker is away. What is in it stays, and sessions run out meanwhile."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.disconnect()
        if server is not None:
            await server.wait_closed()

    async def disconnect(self, client_id: str = "") -> None:
        """Break all connections, or those of a client and of those whose ids begin with its id and a dash; they may connect anew."""
        connections = [task for task, client in self._connections.items() if not client_id or _is_of(client, client_id)]
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Make a topic; `max_message_bytes=5000` is its `max.message.bytes`. Raises `TopicAlreadyExistsError` and `InvalidTopicError`."""
        self._create(name, partitions, {key.replace("_", "."): str(value) for key, value in configs.items()})

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
        at = self._now_ms() if timestamp is None else round(timestamp * 1000)
        builder: Any = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for place, value in enumerate(values):
            builder.append(place, at, key, value, [*headers])
        first = self._append(topic, partition, Batch(builder.build()))
        return [*range(first, first + len(values))]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """What can be read of a topic, partition by partition, or of one partition."""
        logs = self._topic(topic).partitions
        return [record for log in (logs if partition is None else [self._log(topic, partition)]) for record in log.records()]

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """The log of a partition, to be looked at, trimmed and made gaps in."""
        return self._log(topic, partition)

    def group(self, name: str) -> ConsumerGroup:
        """A consumer group: its generation, its members, its offsets. One that nobody has joined is empty."""
        if name not in self._groups:
            self._groups[name] = ConsumerGroup(name)
        return self._groups[name]

    def committed(self, group: str) -> dict[tuple[str, int], Committed]:
        """What a group has committed, by topic and partition."""
        return dict(self.group(group).offsets)

    def expire(self, client_id: str) -> None:
        """End the sessions of a client, as if its heartbeats had stayed away, and of those whose ids begin with its id and a dash."""
        for group in self._groups.values():
            for member in group.described()["members"]:
                if _is_of(member["client_id"], client_id):
                    group.expire(member["member_id"])

    def apply_retention(self) -> None:
        """Trim each log by its `retention.ms`, which nothing else does. Whole batches go, the oldest first."""
        for topic in self._topics.values():
            if (kept := int(topic.config("retention.ms"))) >= 0:
                for log in topic.partitions:
                    log.expire(self._now_ms() - kept)
        self._wake()

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
        except Exception as error:  # noqa: BLE001  # a mistake of ours, which a client would take for a bad connection
            self._failed = self._failed or error
        finally:
            del self._connections[task]
            writer.transport.abort()  # what was not sent yet is lost with the connection

    async def _answer(self, asked: frames.Asked) -> bytes:
        """The answer to one request; raises `ConnectionResetError` where it is to be lost."""
        fault = self.faults.meet(asked.api, _topics_of(asked.body))
        if fault is not None and fault.how == "held":
            await fault.over()
        if fault is not None and fault.how == "lost request":
            raise ConnectionResetError
        if self.watch is not None:
            await self.watch(asked.api, asked.client_id, "before")
        answer = await self._serve[asked.api](asked, _code_of(fault))
        if self.watch is not None:
            await self.watch(asked.api, asked.client_id, "after")
        if fault is not None and fault.how == "lost answer":
            raise ConnectionResetError
        return b"" if asked.api == "Produce" and asked.body["required_acks"] == 0 else frames.encode(asked, answer)

    # Topics.

    async def _api_versions(self, asked: frames.Asked, refused: int) -> _Answer:
        return {"error_code": refused, "api_versions": frames.versions()}

    async def _metadata(self, asked: frames.Asked, refused: int) -> _Answer:
        names = asked.body.get("topics")
        if names is None or (asked.version == 0 and not names):
            names = sorted(self._topics)
        return {
            "brokers": [{"node_id": _NODE, "host": "127.0.0.1", "port": self._port}],
            "controller_id": _NODE,
            "topics": [self._metadata_of(name, refused, may_create=asked.body.get("allow_auto_topic_creation", True)) for name in names],
        }

    def _metadata_of(self, name: str, refused: int, *, may_create: bool) -> _Answer:
        if not _is_topic_name(name):
            refused = refused or InvalidTopicError.errno
        if self._auto_create and may_create and name not in self._topics and not refused:
            self._create(name, 1, {})
        code = refused or (0 if name in self._topics else UnknownTopicOrPartitionError.errno)
        partitions = [] if code else range(len(self._topics[name].partitions))
        return {
            "error_code": code,
            "topic": name,
            "partitions": [
                {"error_code": 0, "partition": number, "leader": _NODE, "replicas": [_NODE], "isr": [_NODE]} for number in partitions
            ],
        }

    async def _create_topics(self, asked: frames.Asked, refused: int) -> _Answer:
        def create(wanted: _Values) -> None:
            partitions = len(wanted["replica_assignment"]) or wanted["num_partitions"]
            if not wanted["replica_assignment"] and wanted["replication_factor"] not in (-1, 1):
                raise InvalidReplicationFactorError("this Kafka has one broker")
            self._create(
                wanted["topic"],
                1 if partitions == -1 else partitions,
                {each["config_key"]: each["config_value"] for each in wanted["configs"]},
                try_only=asked.body.get("validate_only", False),
            )

        return {"topic_errors": [{"topic": each["topic"], **_tried(refused, create, each)} for each in asked.body["create_topic_requests"]]}

    def _create(self, name: str, partitions: int, configs: Mapping[str, str], *, try_only: bool = False) -> None:
        if name in self._topics:
            raise TopicAlreadyExistsError(f"topic {name} exists")
        if not _is_topic_name(name):
            raise InvalidTopicError(f"{name!r} is no name of a topic")
        _check_configs(configs)
        if partitions < 1:
            raise InvalidPartitionsError(f"{partitions} partitions")
        if not try_only:
            self._topics[name] = _Topic(partitions, configs)

    async def _delete_topics(self, asked: frames.Asked, refused: int) -> _Answer:
        def delete(name: str) -> None:
            self._topic(name)
            del self._topics[name]
            for group in self._groups.values():
                for partition in [each for each in group.offsets if each[0] == name]:
                    del group.offsets[partition]

        answers = [{"topic": name, "error_code": _tried(refused, delete, name)["error_code"]} for name in asked.body["topics"]]
        self._wake()
        return {"topic_error_codes": answers}

    async def _create_partitions(self, asked: frames.Asked, refused: int) -> _Answer:
        def create(wanted: _Values) -> None:
            logs, total = self._topic(wanted["topic"]).partitions, wanted["new_partitions"]["count"]
            if total <= len(logs):
                raise InvalidPartitionsError(f"{wanted['topic']} has {len(logs)} partitions, {total} were asked for")
            if not asked.body["validate_only"]:
                logs += [PartitionLog() for _ in range(total - len(logs))]

        return {"topic_errors": [{"topic": each["topic"], **_tried(refused, create, each)} for each in asked.body["topic_partitions"]]}

    async def _describe_configs(self, asked: frames.Asked, refused: int) -> _Answer:
        answers = []
        for resource in asked.body["resources"]:
            entries: list[_Answer] = []

            def describe(resource: _Values = resource, entries: list[_Answer] = entries) -> None:
                if resource["resource_type"] != _OF_TOPIC:
                    return
                topic = self._topic(resource["resource_name"])
                for name, value in {**DEFAULTS, **topic.configs}.items():
                    if resource["config_names"] is None or name in resource["config_names"]:
                        entries.append(
                            {
                                "config_names": name,
                                "config_value": value,
                                "read_only": False,
                                "is_default": name not in topic.configs,
                                "config_source": 1 if name in topic.configs else 5,
                                "is_sensitive": False,
                                "config_synonyms": [],
                            }
                        )

            answers.append({**_tried(refused, describe), **_named(resource), "config_entries": entries})
        return {"resources": answers}

    async def _alter_configs(self, asked: frames.Asked, refused: int) -> _Answer:
        def alter(resource: _Values) -> None:
            if resource["resource_type"] == _OF_TOPIC:
                topic, configs = self._topic(resource["resource_name"]), resource["config_entries"]
                wanted = {each["config_name"]: each["config_value"] for each in configs}
                _check_configs(wanted)
                if not asked.body["validate_only"]:
                    topic.configs = wanted

        return {"resources": [{**_tried(refused, alter, each), **_named(each)} for each in asked.body["resources"]]}

    async def _delete_records(self, asked: frames.Asked, refused: int) -> _Answer:
        def delete(topic: str, partition: _Values) -> None:
            log, before = self._log(topic, partition["partition_index"]), partition["offset"]
            if not -1 <= before <= log.end:
                raise OffsetOutOfRangeError(f"{before} is outside of {log.start} to {log.end}")
            log.trim(log.end if before < 0 else before)

        topics = []
        for topic in asked.body["topics"]:
            partitions = []
            for partition in topic["partitions"]:
                code = _tried(refused, delete, topic["name"], partition)["error_code"]
                low = -1 if code else self._log(topic["name"], partition["partition_index"]).start
                partitions.append({"partition_index": partition["partition_index"], "low_watermark": low, "error_code": code})
            topics.append({"name": topic["name"], "partitions": partitions})
        return {"topics": topics}

    # Records.

    async def _produce(self, asked: frames.Asked, refused: int) -> _Answer:
        topics = []
        for topic in asked.body["topics"]:
            partitions = []
            for sent in topic["partitions"]:
                answer: _Answer = {"partition": sent["partition"], "error_code": refused, "offset": -1, "timestamp": -1}
                if not refused:
                    try:
                        answer["offset"] = self._take(topic["topic"], sent, asked.body)
                    except BrokerResponseError as error:
                        answer["error_code"] = error.errno
                partitions.append(answer)
            topics.append({"topic": topic["topic"], "partitions": partitions})
        return {"topics": topics}

    def _take(self, topic: str, sent: _Values, body: _Values) -> int:
        self._log(topic, sent["partition"])
        config = self._topics[topic].config
        try:
            batch = Batch(sent["messages"] or b"")
        except ValueError as error:
            raise CorruptRecordException(str(error)) from error
        if config("message.timestamp.type") == "CreateTime" and batch.max_timestamp > self._now_ms() + _AHEAD:
            raise InvalidTimestampError(f"a record of {topic} is more than an hour ahead of the broker")
        if "compact" in config("cleanup.policy") and any(record.key is None for record in batch.records()):
            raise InvalidRecordError(f"a record of {topic}, which is compacted, has no key")
        if batch.is_transactional:
            place = topic, sent["partition"]
            self._transactions.check(body.get("transactional_id"), batch.producer_id, batch.producer_epoch, place)
        return self._append(topic, sent["partition"], batch)

    def _append(self, topic: str, partition: int, batch: Batch) -> int:
        log, its_topic = self._log(topic, partition), self._topics[topic]
        if len(batch) > (most := int(its_topic.config("max.message.bytes"))):
            raise MessageSizeTooLargeError(f"a record batch of {len(batch)} bytes, {topic} takes {most}")
        by_append = its_topic.config("message.timestamp.type") == "LogAppendTime"
        offset = log.append(batch, appended_ms=self._now_ms() if by_append else None)
        self._wake()
        return offset

    async def _fetch(self, asked: frames.Asked, refused: int) -> _Answer:
        body, loop = asked.body, asyncio.get_running_loop()
        until = loop.time() + min(body["max_wait_time"] / 1000, self._longest_fetch)
        while True:
            grown = self._grown
            topics, size, is_urgent = self._read(body, refused)
            if is_urgent or size >= body["min_bytes"] or (left := until - loop.time()) <= 0:
                return {"error_code": 0, "topics": topics}
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await grown.wait()

    def _read(self, body: _Values, refused: int) -> tuple[list[_Answer], int, bool]:
        """What a fetch finds now, its bytes, and whether there is an error to tell."""
        topics, size, is_urgent = [], 0, bool(refused)
        committed = body.get("isolation_level", 0) == 1
        for topic in body["topics"]:
            partitions = []
            for wanted in topic["partitions"]:
                offset = wanted.get("fetch_offset", wanted.get("offset"))
                left = min(wanted["max_bytes"], max(body.get("max_bytes", 1 << 30) - size, 0))
                answer = self._read_partition(
                    topic["topic"], wanted["partition"], offset, left, refused, committed=committed, may_exceed=not size
                )
                is_urgent = is_urgent or answer["error_code"] != 0
                size += len(answer["message_set"])
                partitions.append(answer)
            topics.append({"topics": topic["topic"], "partitions": partitions})
        return topics, size, is_urgent

    def _read_partition(
        self, topic: str, partition: int, offset: int, most: int, refused: int, *, committed: bool, may_exceed: bool
    ) -> _Answer:
        answer: _Answer = {
            "partition": partition, "error_code": refused, "highwater_offset": -1, "last_stable_offset": -1, "log_start_offset": -1,
            "aborted_transactions": [], "message_set": b"",
        }  # fmt: skip
        if refused:
            return answer
        try:
            log = self._log(topic, partition)
            if not log.start <= offset <= log.end:
                raise OffsetOutOfRangeError(f"{offset} is outside of {log.start} to {log.end}")
        except BrokerResponseError as error:
            return answer | {"error_code": error.errno}
        found = log.read(offset, most, committed=committed)
        return answer | {
            "highwater_offset": log.end,
            "last_stable_offset": log.stable,
            "log_start_offset": log.start,
            "aborted_transactions": [
                {"producer_id": each.producer_id, "first_offset": each.first} for each in (log.aborted(offset) if committed else ())
            ],
            "message_set": found if may_exceed or len(found) <= most else b"",
        }

    async def _list_offsets(self, asked: frames.Asked, refused: int) -> _Answer:
        committed = asked.body.get("isolation_level", 0) == 1
        topics = []
        for topic in asked.body["topics"]:
            partitions = []
            for wanted in topic["partitions"]:
                code, timestamp, offset = refused, -1, -1
                if not refused:
                    try:
                        timestamp, offset = _offset_at(
                            self._log(topic["topic"], wanted["partition"]), wanted["timestamp"], committed=committed
                        )
                    except BrokerResponseError as error:
                        code = error.errno
                partitions.append({"partition": wanted["partition"], "error_code": code, "timestamp": timestamp, "offset": offset})
            topics.append({"topic": topic["topic"], "partitions": partitions})
        return {"topics": topics}

    # Groups.

    async def _find_coordinator(self, asked: frames.Asked, refused: int) -> _Answer:
        return {"error_code": refused, "coordinator_id": _NODE, "host": "127.0.0.1", "port": self._port}

    async def _join_group(self, asked: frames.Asked, refused: int) -> _Answer:
        body = asked.body
        nothing = {"generation_id": -1, "group_protocol": "", "leader_id": "", "member_id": body["member_id"], "members": []}
        answer: _Answer = {"error_code": refused, **nothing}
        if refused:
            return answer
        session = body["session_timeout"] / 1000
        try:
            if not self._sessions[0] <= session <= self._sessions[1]:
                raise InvalidSessionTimeoutError(f"{session} s, it may be {self._sessions[0]:g} to {self._sessions[1]:g}")
            return await self.group(body["group"]).join(
                member_id=body["member_id"],
                instance=body.get("group_instance_id"),
                client_id=asked.client_id,
                session=session,
                rebalance=body.get("rebalance_timeout", body["session_timeout"]) / 1000,
                protocol_type=body["protocol_type"],
                protocols=[(each["protocol_name"], each["protocol_metadata"]) for each in body["group_protocols"]],
                asks_twice=asked.version >= 4,
            )
        except MemberIdRequired as error:
            return answer | {"error_code": error.errno, "member_id": str(error.args[0])}
        except BrokerResponseError as error:
            return answer | {"error_code": error.errno}

    async def _sync_group(self, asked: frames.Asked, refused: int) -> _Answer:
        body = asked.body
        if refused:
            return {"error_code": refused, "member_assignment": b""}
        try:
            assignment = await self.group(body["group"]).sync(
                member_id=body["member_id"],
                instance=body.get("group_instance_id"),
                generation=body["generation_id"],
                assignments={each["member_id"]: each["member_metadata"] for each in body["group_assignment"]},
            )
        except BrokerResponseError as error:
            return {"error_code": error.errno, "member_assignment": b""}
        return {"error_code": 0, "member_assignment": assignment}

    async def _heartbeat(self, asked: frames.Asked, refused: int) -> _Answer:
        def beat(body: _Values) -> None:
            self.group(body["group"]).heartbeat(
                member_id=body["member_id"], instance=body.get("group_instance_id"), generation=body["generation_id"]
            )

        return _tried(refused, beat, asked.body)

    async def _leave_group(self, asked: frames.Asked, refused: int) -> _Answer:
        return _tried(refused, lambda body: self.group(body["group"]).leave(body["member_id"]), asked.body)

    async def _offset_commit(self, asked: frames.Asked, refused: int) -> _Answer:
        body, group = asked.body, self.group(asked.body["consumer_group"])
        if not refused:
            refused = _tried(0, self._check_commit, group, body)["error_code"]

        def commit(topic: str, wanted: _Values) -> None:
            self._log(topic, wanted["partition"])
            group.commit((topic, wanted["partition"]), wanted["offset"], wanted["metadata"] or "")

        return {
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {"partition": wanted["partition"], "error_code": _tried(refused, commit, topic["topic"], wanted)["error_code"]}
                        for wanted in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ]
        }

    def _check_commit(self, group: ConsumerGroup, body: _Values) -> None:
        group.check_commit(
            member_id=body["consumer_id"], instance=body.get("group_instance_id"), generation=body["consumer_group_generation_id"]
        )

    async def _offset_fetch(self, asked: frames.Asked, refused: int) -> _Answer:
        group, wanted = self._groups.get(asked.body["consumer_group"]), asked.body["topics"]
        offsets = {} if group is None else group.offsets
        if wanted is None:
            names = sorted({topic for topic, _ in offsets})
            wanted = [{"topic": name, "partitions": sorted(number for topic, number in offsets if topic == name)} for name in names]
        nothing = Committed(-1, "")
        return {
            "error_code": refused,
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {"partition": number, "error_code": refused, **offsets.get((topic["topic"], number), nothing)._asdict()}
                        for number in topic["partitions"]
                    ],
                }
                for topic in wanted
            ],
        }

    async def _list_groups(self, asked: frames.Asked, refused: int) -> _Answer:
        return {
            "error_code": refused,
            "groups": [{"group": name, "protocol_type": group.protocol_type} for name, group in sorted(self._groups.items())],
        }

    async def _describe_groups(self, asked: frames.Asked, refused: int) -> _Answer:
        groups = [self._groups.get(name) or ConsumerGroup(name) for name in asked.body["groups"]]
        return {"groups": [{**group.described(), **({} if group.name in self._groups else {"state": "Dead"})} for group in groups]}

    async def _delete_groups(self, asked: frames.Asked, refused: int) -> _Answer:
        def delete(name: str) -> None:
            if name not in self._groups:
                raise GroupIdNotFound(name)
            if self._groups[name].members:
                raise NonEmptyGroup(name)
            del self._groups[name]

        return {
            "results": [
                {"group_id": name, "error_code": _tried(refused, delete, name)["error_code"]} for name in asked.body["groups_names"]
            ]
        }

    # Transactions.

    async def _init_producer_id(self, asked: frames.Asked, refused: int) -> _Answer:
        if refused:
            return {"error_code": refused, "producer_id": -1, "producer_epoch": -1}
        timeout = asked.body["transaction_timeout_ms"] / 1000
        producer_id, epoch = self._transactions.begin_producer(asked.body["transactional_id"], timeout)
        return {"error_code": 0, "producer_id": producer_id, "producer_epoch": epoch}

    async def _add_partitions_to_txn(self, asked: frames.Asked, refused: int) -> _Answer:
        wanted = [(topic["topic"], number) for topic in asked.body["topics"] for number in topic["partitions"]]

        def add() -> None:
            for topic, number in wanted:
                self._log(topic, number)
            self._transactions.add_partitions(*_producer(asked.body), wanted)

        return _of_partitions(asked.body["topics"], _tried(refused, add)["error_code"])

    async def _add_offsets_to_txn(self, asked: frames.Asked, refused: int) -> _Answer:
        return _tried(refused, self._transactions.add_group, *_producer(asked.body), asked.body["group_id"])

    async def _txn_offset_commit(self, asked: frames.Asked, refused: int) -> _Answer:
        body = asked.body
        offsets: Offsets = {
            (topic["topic"], wanted["partition"]): (wanted["offset"], wanted["metadata"] or "")
            for topic in body["topics"]
            for wanted in topic["partitions"]
        }

        def add() -> None:
            for (topic, number), (_, metadata) in offsets.items():
                self._log(topic, number)
                check_metadata(metadata)
            self._transactions.add_offsets(*_producer(body), body["group_id"], offsets)

        code = _tried(refused, add)["error_code"]
        topics = [{"topic": each["topic"], "partitions": [wanted["partition"] for wanted in each["partitions"]]} for each in body["topics"]]
        return _of_partitions(topics, code)

    async def _end_txn(self, asked: frames.Asked, refused: int) -> _Answer:
        def end() -> None:
            self._transactions.end(*_producer(asked.body), commit=asked.body["transaction_result"])

        return _tried(refused, end)

    def _commit_of_transaction(self, group: str, offsets: Offsets) -> None:
        for partition, (offset, metadata) in offsets.items():
            self.group(group).commit(partition, offset, metadata)

    # What is there.

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            raise UnknownTopicOrPartitionError(f"there is no topic {name}")
        return self._topics[name]

    def _log(self, topic: str, partition: int) -> PartitionLog:
        logs = self._topic(topic).partitions
        if not 0 <= partition < len(logs):
            raise UnknownTopicOrPartitionError(f"{topic} has no partition {partition}")
        return logs[partition]

    def _log_of(self, partition: tuple[str, int]) -> PartitionLog | None:
        topic = self._topics.get(partition[0])
        return None if topic is None else topic.partitions[partition[1]]

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    def _wake(self) -> None:
        """Let fetches that wait look again."""
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


def _is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def _check_configs(configs: Mapping[str, str]) -> None:
    """Of the settings that count here, those that are numbers are numbers."""
    for name, value in configs.items():
        if name in _NUMBERS and not re.fullmatch(r"-?\d+", value or ""):
            raise InvalidConfigurationError(f"{name} is {value!r}, which is no number")


def _is_of(client: str, client_id: str) -> bool:
    return f"{client}-".startswith(f"{client_id}-")


def _tried(refused: int, act: Callable[..., object], *arguments: object) -> _Answer:
    """The code of what Kafka would refuse, or of what a fault does."""
    if refused:
        return {"error_code": refused, "error_message": None}
    try:
        act(*arguments)
    except BrokerResponseError as error:
        return {"error_code": error.errno, "error_message": str(error)}
    return {"error_code": 0, "error_message": None}


def _code_of(fault: Fault | None) -> int:
    return 0 if fault is None else fault.code


def _topics_of(body: _Values) -> frozenset[str]:
    asked: Collection[Any] = body.get("topics") or body.get("create_topic_requests") or ()
    return frozenset(each if isinstance(each, str) else each.get("topic") or each.get("name") or "" for each in asked)


def _named(resource: _Values) -> _Answer:
    return {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}


def _producer(body: _Values) -> tuple[str, int, int]:
    return body["transactional_id"], body["producer_id"], body["producer_epoch"]


def _of_partitions(topics: Sequence[_Values], code: int) -> _Answer:
    return {
        "errors": [
            {"topic": topic["topic"], "partition_errors": [{"partition": number, "error_code": code} for number in topic["partitions"]]}
            for topic in topics
        ]
    }


def _offset_at(log: PartitionLog, timestamp: int, *, committed: bool) -> tuple[int, int]:
    if timestamp == _LATEST:
        return -1, log.stable if committed else log.end
    if timestamp == _EARLIEST:
        return -1, log.start
    found = log.since(timestamp)
    return (-1, -1) if found is None else (found.timestamp, found.offset)
