"""What the driver knows of its connection after our packet, on a server that tells no status behind rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.tables import each

from ackwise.stores.mysql.driver import AsyncmyRunner
from ackwise.stores.sql.operation import Answer, Statement

_OPEN, _AUTOCOMMIT = 1, 2


class Connection:
    """Answers each packet with `found`, and is in a transaction by what was told before."""

    def __init__(self, found: SimpleNamespace, *, deprecate_eof: bool) -> None:
        self._result, self._deprecate_eof = found, deprecate_eof
        self.server_status = _OPEN | _AUTOCOMMIT

    async def query(self, text: str) -> None: ...


def rows(status: int) -> SimpleNamespace:
    return SimpleNamespace(field_count=1, rows=((7,),), affected_rows=1, has_next=0, server_status=status)


def changed(status: int) -> SimpleNamespace:
    return SimpleNamespace(field_count=0, rows=None, affected_rows=1, has_next=0, server_status=status)


@each(
    "found, deprecate_eof, status",
    [
        (rows(0), False, _OPEN | _AUTOCOMMIT),  # as asyncmy leaves it: it was not read, and a transaction that is open stays so
        (rows(_AUTOCOMMIT), True, _AUTOCOMMIT),
        (rows(0), True, 0),
        (changed(0), False, 0),
        (changed(0), True, 0),
    ],
)
async def test_only_a_status_that_was_told_counts(found: SimpleNamespace, deprecate_eof: bool, status: int) -> None:
    connection = Connection(found, deprecate_eof=deprecate_eof)
    (answer,) = await AsyncmyRunner(cast(Any, connection)).send([Statement("SELECT 7")])
    assert answer == Answer(found.rows or (), 1)
    assert connection.server_status == status
