"""Protocol of an outbox: rows that say what to send, written in the transaction of the business, and what a relay does with them.

    business transaction           relay (any number; one on SQLite)
    ────────────────────           ─────────────────────────────────
    UPDATE …                       own(…)          lease shards, each with a fencing token
    send(…) send(…)                pending(…)      rows of own shards in the order of their ids
    INSERT rows ─┐ one statement   produce         acks=all, idempotent producer
    COMMIT       ┘                 sent(…)         DELETE … WHERE the token is still mine
                                   failed(…)       attempts + 1, next try, cause; or parked

The states are those of RocketMQ's transactional messages. Every change of a state is a compare-and-set. A row is parked as MESSAGE_ERROR,
never discarded: it is sent once somebody calls `requeue`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ackwise.middleware.message import Headers
from ackwise.middleware.outboxvalues import (
    FIRST_CHECK,
    MAX_CHECKS,
    NEXT_CHECK,
    SHARDS,
    CheckAnswer,
    Failed,
    OutboxRow,
    OutboxStatus,
    Parked,
    Prepared,
    RowState,
    Sent,
    TransactionOutcome,
    UnreadableRow,
    key_hash,
    next_check,
    packed_headers,
    retry_delay,
    shard_of,
    unpacked_headers,
)
from ackwise.middleware.outgoing import Outgoing

__all__ = [
    "FIRST_CHECK",
    "MAX_CHECKS",
    "NEXT_CHECK",
    "SHARDS",
    "BarrierStore",
    "CheckAnswer",
    "Failed",
    "Outbox",
    "OutboxStatus",
    "OutboxTransaction",
    "OutboxRow",
    "OutboxStore",
    "Parked",
    "Prepared",
    "PreparedStore",
    "RelayStore",
    "RowState",
    "Sent",
    "TransactionOutcome",
    "UnreadableRow",
    "key_hash",
    "next_check",
    "packed_headers",
    "retry_delay",
    "shard_of",
    "unpacked_headers",
]


class OutboxTransaction(Protocol):
    """What is to be sent if the transaction that it belongs to commits."""

    def add(self, message: Outgoing) -> str:
        """Put `message` among the rows of this transaction, in the order of the calls; returns its message id.

        Raises `TransactionAborted` once the transaction has ended, and `ConfigurationError` for what no row can hold.
        """
        ...

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        message_id: str | None = None,
    ) -> str:
        """`add` of an `Outgoing` made of this; without a `message_id` it gets a new one, which is returned."""
        ...

    async def flush(self) -> None:
        """Write what was added and not written yet, with one statement. Raises `StoreUnavailable`, `TransactionAborted`."""
        ...


class Outbox(Protocol):
    """What the business side uses: rows in the caller's own transaction. It needs no `open`."""

    def transaction(self, connection: Any) -> AbstractAsyncContextManager[OutboxTransaction]:
        """Open a transaction on `connection` (or join the one that is open), and write the rows before it commits.

        A block that raises rolls back what it opened. What is added before a savepoint stays if that is rolled back, and what is added
        inside it does not. Whoever opened the transaction that was joined commits it, and may call `wake` then.
        """
        ...

    def writer(self, connection: Any) -> OutboxTransaction:
        """Rows for the transaction that is open on `connection`, which somebody else looks after.

        Nothing is written before `flush`, which has to be called outside of savepoints and before the commit; `wake` belongs after it.
        """
        ...

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        message_id: str | None = None,
    ) -> str:
        """`OutboxTransaction.send` of the innermost `transaction` of this outbox around the call. Raises `TransactionAborted` outside."""
        ...

    def wake(self) -> None:
        """Tell relays that rows have come: those of this process at once, others as the database can."""
        ...


class RelayStore(Protocol):
    """What a relay asks of the outbox. Times are the database's; every write names the shards' tokens, and changes nothing without them.

    A store whose `wait_for_rows` also returns for commits of other processes may have a property `notifies` that is true; any other one is
    asked more often while rows come.

    All methods raise `StoreUnavailable` when no answer came; then whether a write was applied is unknown, and repeating it is safe.
    """

    async def claim_relay(self, kind: str) -> None:
        """Record that relays of `kind` ("table" or "cdc") send these rows. Raises `ConfigurationError` if the other kind does,
        or if the user of the database lacks a right that a relay needs."""
        ...

    async def release_relay(self) -> None:
        """Forget the kind, so that the other one may begin. Raises `ConfigurationError` while the lease of a relay is alive."""
        ...

    async def own(self, owner: str, *, lease: float, share: int) -> Mapping[int, int]:
        """Renew the shards of `owner` for `lease` seconds, take over free and expired ones while it has fewer than `share`,
        and give back what is above. Returns its shards with their fencing tokens; a token changes whenever the owner does.

        Where a database has one relay (SQLite) the share does not count, and a second relay is refused with `ConfigurationError`.
        """
        ...

    async def relays(self) -> int:
        """Number of owners whose lease is alive, with shards or without: the fair share of one is `ceil(SHARDS / relays)`."""
        ...

    async def leave(self, owner: str) -> None:
        """Free the shards of `owner`."""
        ...

    async def pending(
        self,
        shards: Mapping[int, int],
        *,
        limit: int,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> list[OutboxRow]:
        """Up to `limit` rows in LOCAL_COMMIT that are due, of `shards`, by id; fewer if their values are large, but at least one.

        Rows whose ids are `under_way` and rows of the `blocked` keys (topic, key) are not among them. Nor is a row whose key has an
        earlier row that is not due yet, or with `block_key` one that is parked because it could not be sent.

        There is no "above this id": ids are given at the insert and not at the commit, so a lower one may come later, and its key's
        next row must not be sent before it.
        """
        ...

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        """Delete rows that the broker acknowledged, one statement; returns how many. Fewer: a token was not ours any more."""
        ...

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        """Write down failures; returns how many. A parked row is MESSAGE_ERROR."""
        ...

    async def wait_for_rows(self, at_most: float) -> None:
        """Return when rows may have come since `pending` was last called, or after `at_most` seconds: a commit in this process,
        a notification of the database."""
        ...

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        """Seconds until the next row of `shards` is due again after a failure; `None` if none waits."""
        ...


class BarrierStore(Protocol):
    """The barrier in the database of the business, which makes a check-back decisive."""

    async def database_id(self, connection: Any | None = None) -> str:
        """A random id that was made with the tables, read through a connection of our own or through `connection`."""
        ...

    async def barrier(self, connection: Any, tx_id: str) -> None:
        """In the local transaction, as its first statement: insert (tx_id, 'C').

        Raises `TransactionAborted` if a check-back was first, or if this tx_id has committed before.
        """
        ...

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """Insert (tx_id, 'R') unless the local transaction was first; waits `wait` seconds for one that runs: then UNKNOWN.

        Only for a tx_id whose local transaction inserts its barrier in this database: any other would be taken for rolled back.
        """
        ...


class PreparedStore(BarrierStore, Protocol):
    """Half messages: rows whose local transaction is open."""

    async def prepare(
        self, messages: Sequence[Outgoing], tx_id: str, *, producer_group: str, barrier_in: str = "", first_check: float = FIRST_CHECK
    ) -> None:
        """Write rows in PREPARED, in a transaction of their own."""
        ...

    async def decide(self, tx_id: str, outcome: TransactionOutcome) -> int:
        """PREPARED → LOCAL_COMMIT or LOCAL_ROLLBACK, by compare-and-set; returns the number of rows that changed.

        UNKNOWN changes nothing: the check-back asks.
        """
        ...

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        """Rows in PREPARED that are due for a check-back; nobody else is given them for `lease` seconds.

        `None`: of all groups, those whose barrier is in this database.
        """
        ...

    async def answered(self, answers: Sequence[CheckAnswer]) -> int:
        """Write down answers to check-backs: a decision, one more check, or MESSAGE_ERROR. By compare-and-set on PREPARED."""
        ...


class OutboxStore(Outbox, RelayStore, PreparedStore, Protocol):
    """An outbox in one database. It is `Maintained` as well. `ackwise.stores.testing` has the suite that every outbox passes."""

    async def open(self) -> None:
        """Connect and create what is missing. Raises `StoreUnavailable` or `ConfigurationError`."""

    async def close(self) -> None:
        """Give back connections. Closing twice does nothing."""

    async def status(self) -> OutboxStatus:
        """How it stands. Raises `StoreUnavailable`."""
        ...

    async def parked(self, *, limit: int = 100, after: int = 0) -> list[Parked]:
        """Rows in MESSAGE_ERROR by id, from above `after`."""
        ...

    async def show(self, row: int) -> Parked | None:
        """One parked row with headers and value."""
        ...

    async def requeue(self, rows: Collection[int] | None = None) -> int:
        """MESSAGE_ERROR → LOCAL_COMMIT with attempts 0, for `rows` or all; returns how many."""
        ...
