"""Requests of producers that number what they send, and of their transactions."""

from __future__ import annotations

from collections.abc import Sequence

from ackwise.testing.kafka.answers import Answer, Serve, Values, tried
from ackwise.testing.kafka.cluster import Cluster
from ackwise.testing.kafka.frames import Asked
from ackwise.testing.kafka.group import check_metadata
from ackwise.testing.kafka.transactions import Offsets

__all__ = ["TransactionRequests"]


class TransactionRequests:
    """What is asked of a transaction coordinator."""

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
