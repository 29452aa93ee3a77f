"""The business side of an outbox, for sessions of SQLAlchemy."""

from ackwise.stores.sqlalchemy.outbox.outbox import SQLAlchemyOutbox

__all__ = ["SQLAlchemyOutbox"]
