"""The records of a group's control topic, and those about dead letters."""

from __future__ import annotations

from tests.formats.golden import check

from ackwise.middleware.flow.controlrecords import (
    ControlRecord,
    MessageAt,
    MessageCommand,
    PartitionInHand,
    WorkerRecord,
    encode,
    encode_command,
    encode_letters,
    encode_worker,
)
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.message import TopicPartition
from ackwise.plugin.operate.deadletter import LetterId, LetterState, encode_state

WORKER = WorkerRecord(
    "4d7c", "node-3", 17, "0.2.0", "ackwise", (PartitionInHand("orders", 3, 5, 2),), (("LookupError", 3),), ("bill by code",), ("away",), 7
)  # fmt: skip


def test_control_2_worker_2_letters_1() -> None:
    records = [
        encode(ControlRecord(Target("bill"), paused=True, at_ms=5)),
        encode(ControlRecord(Target(None, TopicPartition("orders", 3)), paused=False, dead=True, at_ms=5)),
        encode_worker(WORKER),
        encode_letters("graves"),
        encode_command(MessageCommand(MessageAt("orders", 3, 17), "bury", 5_000, 6_000)),
        encode_state(LetterId(0, 7, 5_000), LetterState("redriven", 2, 6_000, "orders/3/100/5/bill")),
    ]
    check("control-records", [f"{key.decode()} {(value or b'').decode()}" for key, value in records])
