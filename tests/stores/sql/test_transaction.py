"""The transaction of an inbox, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from ackwise.middleware.errors import StoreUnavailable
from ackwise.stores.sql.inboxtransaction import InboxTransaction, Session
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement


class Gone(Session[None]):
    """A connection that was lost while the handler worked: nothing waits for an answer on it, each packet fails at once."""

    statements = cast(Any, None)
    address = "db"
    timeout = 60.0
    connection = None
    commits_with: Packet = (Statement("COMMIT"),)

    @property
    def is_open(self) -> bool:
        return False

    async def send(self, packet: Packet) -> Sequence[Answer]:
        raise Failure(Problem.LOST, ConnectionError("gone"))

    async def regain(self) -> None:
        await self.send(())

    async def commit(self) -> None:
        await self.send(())

    async def rollback(self, *, is_marked: bool) -> bool:
        await self.send(())
        return True

    async def cut(self) -> None: ...

    def unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(str(error))


async def test_a_session_that_can_not_be_put_back_since_its_connection_is_lost_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreUnavailable, match="gone"):
        async with InboxTransaction(Gone(), 60.0) as transaction:
            await transaction.finish([])
