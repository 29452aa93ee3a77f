"""The kit's own fixtures."""

from __future__ import annotations

from ackwise.testing.fixtures import memory_kafka, virtual_clock

__all__ = ["memory_kafka", "virtual_clock"]
