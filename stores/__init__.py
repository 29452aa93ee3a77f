"""Stores and databases for `Dedup`, `Transactional` and `Outbox`, and what a custom store is made of.

Names are loaded when they are first asked for: each database needs its own driver.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackwise.middleware.storage.changes import Change as Change
    from ackwise.middleware.storage.changes import Operation as Operation
    from ackwise.middleware.storage.claimstore import Acquired as Acquired
    from ackwise.middleware.storage.claimstore import Claim as Claim
    from ackwise.middleware.storage.claimstore import ClaimKey as ClaimKey
    from ackwise.middleware.storage.claimstore import ClaimStore as ClaimStore
    from ackwise.middleware.storage.claimstore import Exchange as Exchange
    from ackwise.middleware.storage.claimstore import ExchangeResult as ExchangeResult
    from ackwise.middleware.storage.claimstore import Outcome as Outcome
    from ackwise.stores.conformance import Features as Features
    from ackwise.stores.conformance import StoreConformance as StoreConformance
    from ackwise.stores.mysql import MySQLInbox as MySQLInbox
    from ackwise.stores.mysql import MySQLOutbox as MySQLOutbox
    from ackwise.stores.mysql import MySQLStore as MySQLStore
    from ackwise.stores.postgres import PostgresInbox as PostgresInbox
    from ackwise.stores.postgres import PostgresStore as PostgresStore
    from ackwise.stores.postgres.outbox import PostgresOutbox as PostgresOutbox
    from ackwise.stores.protocol.transitions import Place as Place
    from ackwise.stores.protocol.transitions import Record as Record
    from ackwise.stores.protocol.transitions import decide as decide
    from ackwise.stores.redis import RedisStore as RedisStore
    from ackwise.stores.sqlalchemy import SQLAlchemyInbox as SQLAlchemyInbox
    from ackwise.stores.sqlalchemy import SQLAlchemyOutbox as SQLAlchemyOutbox
    from ackwise.stores.sqlite import SQLiteInbox as SQLiteInbox
    from ackwise.stores.sqlite import SQLiteStore as SQLiteStore
    from ackwise.stores.sqlite.outbox import SQLiteOutbox as SQLiteOutbox

_HOMES = {
    "stores.sqlite": ("SQLiteInbox", "SQLiteStore"),
    "stores.sqlite.outbox": ("SQLiteOutbox",),
    "stores.postgres": ("PostgresInbox", "PostgresStore"),
    "stores.postgres.outbox": ("PostgresOutbox",),
    "stores.mysql": ("MySQLInbox", "MySQLOutbox", "MySQLStore"),
    "stores.sqlalchemy": ("SQLAlchemyInbox", "SQLAlchemyOutbox"),
    "stores.redis": ("RedisStore",),
    "stores.protocol.transitions": ("Place", "Record", "decide"),
    "stores.conformance": ("Features", "StoreConformance"),
    "middleware.storage.claimstore": ("Acquired", "Claim", "ClaimKey", "ClaimStore", "Exchange", "ExchangeResult", "Outcome"),
    "middleware.storage.changes": ("Change", "Operation"),
}
"""Where each name lives; a test compares it with the block for type checkers."""

_HOME_OF = {name: f"ackwise.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ackwise.stores' has no attribute {name!r}; its names are {', '.join(sorted(_HOME_OF))}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
