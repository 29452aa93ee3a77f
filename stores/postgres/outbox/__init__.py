"""The outbox in PostgreSQL: `PostgresOutbox`."""

from ackwise.stores.postgres.outbox.outbox import PostgresOutbox, from_url

__all__ = ["PostgresOutbox", "from_url"]
