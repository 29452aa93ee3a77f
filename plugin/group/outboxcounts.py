"""Counts of the relay of an outbox in one process."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OutboxCounts"]


@dataclass(slots=True)
class OutboxCounts:
    """Rows since the start of the process, and how its relay stands."""

    relaying: bool = False  #: it owns shards, or asks for some
    shards: int = 0  #: that it owns now
    sent: int = 0  #: acknowledged and deleted
    failed: int = 0  #: failures that are tried again
    parked: int = 0  #: rows that became MESSAGE_ERROR here
    taken_over: int = 0  #: acknowledged here, after another relay had taken over their shard: it sends them again
    lag: float = 0.0  #: seconds: age of the oldest row when rows were last read, 0 once none waited
    brokers_away: bool = False  #: no broker answered when rows were last sent
