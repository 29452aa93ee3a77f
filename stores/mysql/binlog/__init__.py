"""Change data capture of MariaDB and MySQL: the binary log of a server, by file and position."""

from __future__ import annotations

from collections.abc import Sequence

from ackwise.stores.mysql.binlog.source import MySQLChanges

__all__ = ["MySQLChanges", "from_url"]


def from_url(
    url: str, *, name: str, publication: str, tables: Sequence[str] = (), create: bool = False, replace_lost: bool = False
) -> MySQLChanges:
    """The source for `ackwise cdc`; not yet connected. The log has no publications, so `publication` says nothing here.

    Raises `ConfigurationError`.
    """
    return MySQLChanges(url, name=name, tables=tables, create=create, replace_lost=replace_lost)
