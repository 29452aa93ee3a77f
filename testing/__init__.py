"""The test kit: an app with an in-memory Kafka, a clock to move, and assertions over its events."""

from ackwise.plugin.local.localkafka import LocalKafka, local_kafka
from ackwise.testing.app import TestApp, VirtualClock, batch, message
from ackwise.testing.assertions import Fate, Place, assert_no_loss, assert_order, assert_run_once
from ackwise.testing.crashes import CRASH_POINTS, CrashPoint
from ackwise.testing.hostile.client import hostile_client
from ackwise.testing.hostile.harm import HARMS
from ackwise.testing.hostile.plan import Plan
from ackwise.testing.kafka.broker import MemoryKafka
from ackwise.testing.kafka.faults import Fault, Faults
from ackwise.testing.kafka.group import Committed
from ackwise.testing.kafka.partition import Record

__all__ = [
    "CRASH_POINTS",
    "Committed",
    "CrashPoint",
    "HARMS",
    "Fate",
    "Fault",
    "Faults",
    "LocalKafka",
    "MemoryKafka",
    "Place",
    "Plan",
    "Record",
    "TestApp",
    "VirtualClock",
    "assert_no_loss",
    "assert_order",
    "assert_run_once",
    "batch",
    "hostile_client",
    "local_kafka",
    "message",
]
