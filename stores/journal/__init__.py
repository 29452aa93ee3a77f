"""The event journal: events in a log that is durable when `flush` returns, and in Parquet files that Spark reads."""

from ackwise.stores.journal.recovery import Recovery, UnreadableLog, read_log, recover, snapshot
from ackwise.stores.journal.sink import Journal, from_url

__all__ = ["Journal", "Recovery", "UnreadableLog", "from_url", "read_log", "recover", "snapshot"]
