"""`Route`: what becomes of the changes of one source, and the parcels that are sent for them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ackwise.middleware.changes import Change
from ackwise.middleware.outbox import OutboxRow
from ackwise.middleware.outgoing import Acked, MessageSender, Outgoing, SendFailed

__all__ = ["Aside", "OpenSender", "Parcel", "Route", "Verdict"]


class Parcel(NamedTuple):
    """A message on its way, with the row that it is made of if that is one of the outbox."""

    message: Outgoing
    position: str
    """Of the commit; empty for a row that was read from the table."""
    row: OutboxRow | None = None


class Aside(enum.Enum):
    """What else a change may call for."""

    NOTHING = "nothing"
    """It is no message, or was sent already."""
    TABLE = "table"
    """The log alone does not say what to send: what waits in the table is read."""


Verdict = Parcel | Aside


class Route(Protocol):
    """What becomes of changes. All methods may raise `Unavailable`: then another session begins where the position stands."""

    async def open(self) -> None:
        """Connect, before the source is opened. Raises `StoreUnavailable` or `ConfigurationError`."""

    async def begin(self) -> None:
        """A session begins, and this process is the one that reads. Raises `ConfigurationError`."""

    async def keep(self) -> bool:
        """A few seconds have passed; whether the table is to be looked into."""
        ...

    def judge(self, change: Change) -> Verdict:
        """What becomes of `change`. Raises `UnreadableChange`; nothing behind it is sent then."""
        ...

    async def waiting(self) -> Sequence[Parcel]:
        """What waits in the table, a part of it; empty where there is none, and once everything was given out and sent."""
        ...

    async def unheld(self, parcels: Sequence[Parcel]) -> Sequence[Parcel]:
        """Those that may be sent; the others wait in the table behind a parked row of their key."""
        ...

    async def sent(self, sent: Sequence[tuple[Parcel, Acked]]) -> None:
        """Kafka acknowledged these, and their events are durable."""

    async def refuse(self, parcel: Parcel, failure: SendFailed) -> None:
        """Kafka refuses this for good: park it, or raise an `AckwiseError`, which ends the relay before it."""

    async def end(self) -> None:
        """Finish what is under way; the session ends. Raises nothing of the store's."""


class OpenSender(MessageSender, Protocol):
    """A sender that connects, and closes."""

    async def start(self) -> None:
        """Connect. Raises `Unavailable` if no broker answers, `ConfigurationError` for options that can't be used."""

    async def stop(self) -> None:
        """Close in bounded time; nothing is sent after that. Raises nothing of the client's."""
