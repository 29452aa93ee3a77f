"""Protocol of change data capture: what a database's log says of its rows, in the order of the commits, and how far it was sent.

    ChangeSource                       relay
    ────────────                       ─────
    open()                             checks, then reads on from the position that was acknowledged last
    read()          → Change, …        a row that was inserted, updated or deleted, in a transaction that has committed
                    → Committed        the end of its transaction
    acknowledge(…)  ←                  Kafka acknowledged everything up to this `Committed`

A position moves only at the end of a transaction. So what was not acknowledged is read again after a crash, under the same ids.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ackwise.middleware.errors import AckwiseError, StoreUnavailable

if TYPE_CHECKING:
    from ackwise.middleware.storage.outbox import OutboxRow


class ChangesLost(AckwiseError):
    """The log does not have what comes after the acknowledged position, or what is read was changed. To go on is an operator's decision."""


class UnreadableChange(AckwiseError):
    """The log says something that can't be read or sent. The position stays before it."""


class NotInLog(UnreadableChange):
    """A column that an update left as it was, and that the log therefore does not repeat."""


class SourceBusy(StoreUnavailable):
    """Another relay reads from this position; it is tried again until that one leaves."""


class Operation(enum.Enum):
    """What happened to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Change(NamedTuple):
    """A change of one row."""

    table: str
    """With its schema, such as `public.orders`; on MariaDB and MySQL with its database."""
    operation: Operation
    row: Mapping[str, Any]
    """The columns by name: the new row, or for DELETE what the log has of the old one. Raises `NotInLog` for a column that is not there."""
    old: Mapping[str, Any] | None
    """What the log has of the row before an update: its key if that changed, all of it under REPLICA IDENTITY FULL or on MariaDB."""
    position: str
    """That of its transaction's commit; of its start where the log has that first, as MariaDB's."""
    number: int
    """Its place in the transaction, from 0."""
    id: str
    """The same whenever the log is read again, and of no other change: the message id."""
    committed_ms: int
    """Epoch milliseconds of the commit, by the database's clock."""


class Committed(NamedTuple):
    """The end of a transaction. `position` is what `ChangeSource.acknowledge` is given back."""

    position: str


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far a source has come. Bytes are those of the log."""

    name: str
    """Of the slot, or of the stored position."""
    acknowledged: str | None
    """The position that a crash goes back to."""
    active: bool
    """A relay reads from it now."""
    behind: int | None
    """Bytes of log between the acknowledged position and the end of the log."""
    retained: int | None
    """Bytes of log that are kept for this source."""
    now_ms: int
    """Epoch milliseconds of the database's clock."""
    findings: tuple[str, ...] = ()
    """What is wrong or unwise, a sentence each."""


class ChangeSource(Protocol):
    """The changes of a database, in the order of the commits. One reader at a time."""

    @property
    def name(self) -> str:
        """The name of the position, such as a slot's: unique in the database."""
        ...

    @property
    def address(self) -> str:
        """Return where the database is, without user and password."""
        ...

    async def open(self) -> None:
        """Check settings, rights and position, and start to read after what was acknowledged last.

        Raises `ConfigurationError` for what a user can fix, `ChangesLost` if the log does not reach back that far,
        `SourceBusy` if another relay reads, otherwise `StoreUnavailable`.
        """

    async def read(self, limit: int) -> Sequence[Change | Committed]:
        """The next changes, `limit` or a few more; waits for the first, and for no other one.

        Raises `StoreUnavailable`, `ChangesLost` or `UnreadableChange`; then it is at its end and may be opened again.
        """
        ...

    def acknowledge(self, position: str) -> None:
        """Kafka acknowledged everything up to the `Committed` with this position. The database learns of it within a second."""

    async def hold(self, why: str | None) -> None:
        """Store why the position does not move, a sentence for `status`; `None`: it moves. Raises `StoreUnavailable`."""

    async def beat(self) -> SourceStatus:
        """Write a heartbeat, which lets the position of an idle source go forward, and return how far it has come.

        Raises `StoreUnavailable`.
        """
        ...

    async def status(self) -> SourceStatus:
        """How far it has come, asked of the database; it need not be open. Raises `StoreUnavailable` or `ConfigurationError`."""
        ...

    async def close(self) -> None:
        """Tell the database what was acknowledged, and disconnect. Closing twice does nothing."""

    def outbox_row(self, change: Change) -> OutboxRow | None:
        """The row of the outbox that `change` inserted; `None` if the log alone does not say whether and what to send.

        `None` stands for a row that is sent once the table has it ready: half messages, and rows that were updated.
        """
        ...
