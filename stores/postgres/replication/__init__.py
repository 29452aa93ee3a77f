"""Change data capture of PostgreSQL: the log of a database by logical replication, over libpq."""

from __future__ import annotations

from collections.abc import Sequence

from ackwise.stores.postgres.replication.source import PostgresChanges

__all__ = ["PostgresChanges", "from_url"]


def from_url(
    url: str, *, name: str, publication: str, tables: Sequence[str] = (), create: bool = False, replace_lost: bool = False
) -> PostgresChanges:
    """The source for `ackwise cdc`; not yet connected. Raises `ConfigurationError`."""
    return PostgresChanges(url, name=name, publication=publication, tables=tables, create=create, replace_lost=replace_lost)
