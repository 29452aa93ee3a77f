"""The outbox in a SQLite file: `SQLiteOutbox`."""

from ackwise.stores.sqlite.outbox.outbox import SQLiteOutbox, from_url

__all__ = ["SQLiteOutbox", "from_url"]
