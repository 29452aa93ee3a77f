"""Records in which workers say how they are."""

from __future__ import annotations

import json

import pytest
from tests.tables import each

from ackwise.middleware.flow.controlrecords import PartitionInHand, UnreadableControl, WorkerRecord, decode_worker, encode_worker, is_worker

RECORD = WorkerRecord(
    "4d7c", "node-3", 17, "1.0.0", "ackwise", (PartitionInHand("orders", 3, 5, 2),), (("LookupError", 3),), ("bill by code",), ("away",), 7
)  # fmt: skip


def test_a_record_comes_back_as_it_was() -> None:
    key, value = encode_worker(RECORD)
    assert key == b"worker/4d7c"
    assert is_worker(key)
    assert decode_worker(key, value) == RECORD


def test_what_a_newer_version_adds_is_passed_over() -> None:
    key, value = encode_worker(RECORD)
    assert decode_worker(key, json.dumps({**json.loads(value), "mood": "fine"}).encode()) == RECORD


@each("key", [None, b"", b"handler/worker/1", b"message/orders/0/1"])
def test_other_keys_are_of_no_worker(key: bytes | None) -> None:
    assert not is_worker(key)


CHANGES: list[dict[str, object]] = [
    {"host": 3}, {"pid": "17"}, {"pid": True}, {"partitions": None}, {"partitions": [["orders", 3]]},
    {"partitions": [["orders", "3", 1, 1]]},
    {"partitions": {"orders": 3}}, {"partitions": "ab"}, {"waiting": [["why"]]}, {"waiting": [[1, 1]]}, {"paused": [1]}, {"troubles": 7},
    {"expired": "7"},
]  # fmt: skip


@each("change", CHANGES)
def test_what_is_not_as_ackwise_writes_it_is_unreadable(change: dict[str, object]) -> None:
    key, value = encode_worker(RECORD)
    with pytest.raises(UnreadableControl, match="not what this Ackwise writes"):
        decode_worker(key, json.dumps({**json.loads(value), **change}).encode())


@each("value", [b"", b"no JSON", b"\xff", b"[]", b"null", b"{}", b"[" * 100_000])
def test_what_is_no_object_is_unreadable(value: bytes) -> None:
    with pytest.raises(UnreadableControl):
        decode_worker(b"worker/1", value)
