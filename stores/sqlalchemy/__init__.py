"""Exactly once in the database of an SQLAlchemy session, and an outbox there."""

from ackwise.middleware.errors import PackageMissing

try:
    from ackwise.stores.sqlalchemy.inbox import SQLAlchemyInbox
    from ackwise.stores.sqlalchemy.outbox import SQLAlchemyOutbox
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise PackageMissing("the SQLAlchemy inbox needs SQLAlchemy; install it with pip install 'ackwise[sqlalchemy]'") from None

__all__ = ["SQLAlchemyInbox", "SQLAlchemyOutbox"]
