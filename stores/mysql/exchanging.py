"""The rows of a packet that is sent through an asyncmy connection past any operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncmy.cursors import Cursor

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["rows_of"]


async def rows_of(connection: Connection, packet: str) -> list[Any]:
    """Return the rows of a packet, whichever of its statements answers with some."""
    found: list[Any] = []
    async with connection.cursor(Cursor) as cursor:
        await cursor.execute(packet)
        while True:
            if cursor.description:
                found.extend(await cursor.fetchall())
            if not await cursor.nextset():
                return found
