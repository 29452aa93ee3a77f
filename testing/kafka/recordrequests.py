"""Requests that write and read records, and those of idempotent and transactional producers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from aiokafka.errors import BrokerResponseError, CorruptRecordException, InvalidTimestampError, OffsetOutOfRangeError

from ackwise.plugin.kafka.kafkaerrors import InvalidRecordError
from ackwise.testing.kafka.cluster import Cluster, Offsets
from ackwise.testing.kafka.frames import Answer, Asked, Serve, Values, tried
from ackwise.testing.kafka.group import check_metadata
from ackwise.testing.kafka.partition import Batch, PartitionLog

#: Milliseconds that the time of a record may be ahead of the broker's (Kafka: `message.timestamp.after.max.ms`, KIP-1030).
_AHEAD: Final = 3_600_000

_LATEST, _EARLIEST, _EARLIEST_LOCAL = -1, -2, -4


class RecordRequests:
    """The requests that produce, fetch and look up records."""

    def __init__(self, cluster: Cluster, longest_fetch: float) -> None:
        """`longest_fetch`: seconds that a fetch which finds nothing waits at most."""
        self._cluster = cluster
        self._longest_fetch = longest_fetch
        self.serves: dict[str, Serve] = {
            "Produce": self._produce,
            "Fetch": self._fetch,
            "ListOffsets": self._list_offsets,
        }

    async def _produce(self, asked: Asked, refused: int) -> Answer:
        topics = []
        for topic in asked.body["topics"]:
            partitions = []
            for sent in topic["partitions"]:
                answer: Answer = {"partition": sent["partition"], "error_code": refused, "offset": -1, "timestamp": -1}
                if not refused:
                    try:
                        answer["offset"] = self._take(topic["topic"], sent, asked.body)
                    except BrokerResponseError as error:
                        answer["error_code"] = error.errno
                partitions.append(answer)
            topics.append({"topic": topic["topic"], "partitions": partitions})
        return {"topics": topics}

    def _take(self, topic: str, sent: Values, body: Values) -> int:
        self._cluster.log(topic, sent["partition"])
        config = self._cluster.topics[topic].config
        try:
            batch = Batch(sent["messages"] or b"")
        except ValueError as error:
            raise CorruptRecordException(str(error)) from error
        if config("message.timestamp.type") == "CreateTime" and batch.max_timestamp > self._cluster.now_ms() + _AHEAD:
            raise InvalidTimestampError(f"a record of {topic} is more than an hour ahead of the broker")
        if "compact" in config("cleanup.policy") and any(record.key is None for record in batch.records()):
            raise InvalidRecordError(f"a record of {topic}, which is compacted, has no key")
        if batch.is_transactional:
            place = topic, sent["partition"]
            self._cluster.transactions.check(body.get("transactional_id"), batch.producer_id, batch.producer_epoch, place)
        return self._cluster.append(topic, sent["partition"], batch)

    async def _fetch(self, asked: Asked, refused: int) -> Answer:
        body, loop = asked.body, asyncio.get_running_loop()
        until = loop.time() + min(body["max_wait_time"] / 1000, self._longest_fetch)
        while True:
            grown = self._cluster.grown
            topics, size, is_urgent = self._read(body, refused)
            if is_urgent or size >= body["min_bytes"] or (left := until - loop.time()) <= 0:
                return {"error_code": 0, "topics": topics}
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await grown.wait()

    def _read(self, body: Values, refused: int) -> tuple[list[Answer], int, bool]:
        """Return the records of a fetch, their bytes, and True if there is an error to report."""
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
    ) -> Answer:
        answer: Answer = {
            "partition": partition, "error_code": refused, "highwater_offset": -1, "last_stable_offset": -1, "log_start_offset": -1,
            "aborted_transactions": [], "message_set": b"",
        }  # fmt: skip
        if refused:
            return answer
        try:
            log = self._cluster.log(topic, partition)
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

    async def _list_offsets(self, asked: Asked, refused: int) -> Answer:
        committed = asked.body.get("isolation_level", 0) == 1
        topics = []
        for topic in asked.body["topics"]:
            partitions = []
            for wanted in topic["partitions"]:
                code, timestamp, offset = refused, -1, -1
                if not refused:
                    try:
                        timestamp, offset = _offset_at(
                            self._cluster.log(topic["topic"], wanted["partition"]), wanted["timestamp"], committed=committed
                        )
                    except BrokerResponseError as error:
                        code = error.errno
                partitions.append({"partition": wanted["partition"], "error_code": code, "timestamp": timestamp, "offset": offset})
            topics.append({"topic": topic["topic"], "partitions": partitions})
        return {"topics": topics}


def _offset_at(log: PartitionLog, timestamp: int, *, committed: bool) -> tuple[int, int]:
    if timestamp == _LATEST:
        return -1, log.stable if committed else log.end
    if timestamp == _EARLIEST:
        return -1, log.start
    if timestamp == _EARLIEST_LOCAL:
        return -1, max(log.start, log.local_start)
    found = log.since(timestamp)
    return (-1, -1) if found is None else (found.timestamp, found.offset)


class TransactionRequests:
    """The requests to a transaction coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.serves: dict[str, Serve] = {
            "InitProducerId": self._init_producer_id,
            "AddPartitionsToTxn": self._add_partitions_to_txn,
            "AddOffsetsToTxn": self._add_offsets_to_txn,
            "TxnOffsetCommit": self._txn_offset_commit,
            "EndTxn": self._end_txn,
        }

    async def _init_producer_id(self, asked: Asked, refused: int) -> Answer:
        if refused:
            return {"error_code": refused, "producer_id": -1, "producer_epoch": -1}
        timeout = asked.body["transaction_timeout_ms"] / 1000
        producer_id, epoch = self._cluster.transactions.begin_producer(asked.body["transactional_id"], timeout)
        return {"error_code": 0, "producer_id": producer_id, "producer_epoch": epoch}

    async def _add_partitions_to_txn(self, asked: Asked, refused: int) -> Answer:
        wanted = [(topic["topic"], number) for topic in asked.body["topics"] for number in topic["partitions"]]

        def add() -> None:
            for topic, number in wanted:
                self._cluster.log(topic, number)
            self._cluster.transactions.add_partitions(*_producer(asked.body), wanted)

        return _of_partitions(asked.body["topics"], tried(refused, add)["error_code"])

    async def _add_offsets_to_txn(self, asked: Asked, refused: int) -> Answer:
        return tried(refused, self._cluster.transactions.add_group, *_producer(asked.body), asked.body["group_id"])

    async def _txn_offset_commit(self, asked: Asked, refused: int) -> Answer:
        body = asked.body
        offsets: Offsets = {
            (topic["topic"], wanted["partition"]): (wanted["offset"], wanted["metadata"] or "")
            for topic in body["topics"]
            for wanted in topic["partitions"]
        }

        def add() -> None:
            for (topic, number), (_, metadata) in offsets.items():
                self._cluster.log(topic, number)
                check_metadata(metadata)
            self._cluster.transactions.add_offsets(*_producer(body), body["group_id"], offsets)

        code = tried(refused, add)["error_code"]
        topics = [{"topic": each["topic"], "partitions": [wanted["partition"] for wanted in each["partitions"]]} for each in body["topics"]]
        return _of_partitions(topics, code)

    async def _end_txn(self, asked: Asked, refused: int) -> Answer:
        def end() -> None:
            self._cluster.transactions.end(*_producer(asked.body), commit=asked.body["transaction_result"])

        return tried(refused, end)


def _producer(body: Values) -> tuple[str, int, int]:
    return body["transactional_id"], body["producer_id"], body["producer_epoch"]


def _of_partitions(topics: Sequence[Values], code: int) -> Answer:
    return {
        "errors": [
            {"topic": topic["topic"], "partition_errors": [{"partition": number, "error_code": code} for number in topic["partitions"]]}
            for topic in topics
        ]
    }
