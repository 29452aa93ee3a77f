"""Protocol of an outbox: rows that say what to send, written in the business transaction and sent by a relay; their states and retries.

    business transaction           relay (any number; one on SQLite)
    ────────────────────           ─────────────────────────────────
    UPDATE …                       own(…)          lease shards, each with a fencing token
    send(…) send(…)                pending(…)      rows of own shards in the order of their ids
    INSERT rows ─┐ one statement   produce         acks=all, idempotent producer
    COMMIT       ┘                 sent(…)         DELETE … WHERE the token is still mine
                                   failed(…)       attempts + 1, next try, cause; or parked

The states are those of RocketMQ's transactional messages. Every change of a state is a compare-and-set. A row is parked as MESSAGE_ERROR,
never discarded: it is sent after a call of `requeue`.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import json
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.rowtime import AT_ONCE, At, Delay, Expires, Timing

#: Shards of an outbox. A relay owns whole shards, so all rows of a key have one sender, and their order is kept.
SHARDS: Final = 64

#: Seconds after `prepare` until the first check-back, and from one to the next. RocketMQ: `transactionTimeOut`, `transactionCheckInterval`.
FIRST_CHECK, NEXT_CHECK = 6.0, 30.0

#: Answered checks after which a row is parked. RocketMQ: `transactionCheckMax`.
MAX_CHECKS: Final = 15


class RowState(enum.IntEnum):
    """The state of a row. LOCAL_ROLLBACK, GLOBAL_COMMIT and EXPIRED are terminal. RocketMQ has all but the last."""

    UNKNOWN = 0
    """Never of our row: the answer of a check-back that can't decide now."""
    PREPARED = 1
    """Durable; the local transaction has not ended yet, as far as is known."""
    LOCAL_COMMIT = 2
    """The local transaction has committed: to be sent."""
    LOCAL_ROLLBACK = 3
    """The local transaction has rolled back: never sent."""
    GLOBAL_COMMIT = 4
    """The broker has acknowledged it."""
    MESSAGE_ERROR = 5
    """Parked: refused for good, or its attempts or checks are used up. `requeue` makes it LOCAL_COMMIT."""
    EXPIRED = 6
    """Its time was over before a send of it started: never sent."""


def shard_of(message: Outgoing) -> int:
    """The shard of a row: equal topic and key, equal shard. Without a key the message id spreads the rows, which have no order."""
    name = message.key if message.key is not None else message.message_id.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(message.topic.encode() + b"\0" + name, digest_size=2).digest()
    return int.from_bytes(digest, "big") % SHARDS


def key_hash(topic: str, key: bytes) -> int:
    """What a row keeps to find others of its key: 63 bits of a hash of topic and key, above 0."""
    digest = hashlib.blake2b(topic.encode() + b"\0" + key, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


def packed_headers(headers: Headers) -> str | None:
    """Headers as they stand in a row: JSON, a list of pairs of a name and a value in base 64; `None` without headers."""
    if not headers:
        return None
    return json.dumps([[name, None if value is None else base64.b64encode(value).decode("ascii")] for name, value in headers])


def unpacked_headers(packed: str | None) -> Headers:
    """The headers of a row. Raises `ValueError`, `TypeError` or `RecursionError` for a text that `packed_headers` never wrote."""
    if packed is None:
        return ()
    return tuple((name, None if value is None else base64.b64decode(value, validate=True)) for name, value in json.loads(packed))


#: Bytes of rows that are read at once at most, if that is more than one row: a relay has to hold them in memory.
MOST_BYTES: Final = 32 * 1024 * 1024


class OutboxRow(NamedTuple):
    """A row to be sent."""

    id: int
    shard: int
    message: Outgoing
    attempts: int
    """How often sending it has failed."""
    created_ms: int
    """Epoch milliseconds of the database's clock at the insert."""
    is_delayed: bool = False
    """It was given a time, so it is outside of the order of its key."""
    expires: bool = False
    """It may have expired by the time that it is sent: see `RelayStore.begin`."""


class Sent(NamedTuple):
    """The broker has acknowledged the row `id`."""

    id: int
    shard: int


class Failed(NamedTuple):
    """Sending the row `id` failed: it is due again in `again_in` seconds, or parked if that is `None`."""

    id: int
    shard: int
    cause: str
    """One sentence, without anything of the payload."""
    again_in: float | None


class Begun(NamedTuple):
    """What `RelayStore.begin` says of rows; one that is in neither is not ours any more."""

    may_go: Collection[int] = ()
    """They may be sent now, and never expire from now on."""
    expired: Collection[int] = ()
    """Their time was over before; `expire` writes it down."""


class Holder(NamedTuple):
    """A row that could not be sent, and that the later rows of its key wait for."""

    id: int
    topic: str
    key: bytes | None
    """`None`: nothing waits for it."""
    is_parked: bool


class UnreadableRow(AckwiseError):
    """The row `id` can't be read: Ackwise did not write it so. It is parked, or the rows behind it would wait forever."""

    def __init__(self, id: int, shard: int, topic: str, why: str) -> None:
        super().__init__(f"row {id} can't be read ({why}); see who changed the table")
        self.id, self.shard, self.topic = id, shard, topic


class Parked(NamedTuple):
    """A row that waits for the operator's decision."""

    id: int
    topic: str
    message_id: str
    key: bytes | None
    attempts: int
    checks: int
    cause: str
    created_ms: int
    headers: Headers = ()
    value: bytes | None = None
    """Filled only when one row is shown."""


class Prepared(NamedTuple):
    """A row whose local transaction has not said how it ended, and which is due for a check-back."""

    id: int
    message: Outgoing
    tx_id: str
    checks: int
    """Answered checks so far."""
    created_ms: int
    producer_group: str
    barrier_in: str
    """The `database_id` of the database where its local transaction inserts a barrier; empty if only a callback can answer."""
    is_delayed: bool = False
    """It is sent some time after the commit."""


class HalfMessage(NamedTuple):
    """A row in PREPARED, as an operator sees it."""

    id: int
    topic: str
    message_id: str
    tx_id: str
    producer_group: str
    checks: int
    created_ms: int


class TransactionOutcome(enum.Enum):
    """How a local transaction ended. RocketMQ: `LocalTransactionState`."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """It may still be running, or its outcome can't be asked now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer of a check that has no other yet, on purpose: it is asked again after `duration`, seconds or a text such as `"10m"`.

    It uses up none of the checks. Raises `ConfigurationError` for what is no duration above 0.
    """

    duration: float | str

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ConfigurationError("a check waits for 0 s; give the time until the next one, such as Wait('10m')")

    @property
    def seconds(self) -> float:
        """The duration."""
        return parse_duration(self.duration, what="the duration of Wait")


CheckResult: TypeAlias = TransactionOutcome | Wait | Outgoing | bytes
"""What a check callback returns: how the local transaction ended, that the answer is not there yet, or what to send.

Bytes are the value of the half message, and an `Outgoing` is sent in its place, under the id of the half message.
"""


class CheckAnswer(NamedTuple):
    """The answer to a check-back of the row `id`. An answer UNKNOWN counts as a check; a check that raised has no answer and does not."""

    id: int
    outcome: TransactionOutcome
    again_in: float | None = NEXT_CHECK
    """Seconds until the next check after UNKNOWN; `None` parks the row."""
    cause: str = ""
    content: Outgoing | None = None
    """With COMMIT: what is sent in place of what was prepared. It has the message id of the row."""
    counts: bool = True
    """False for an UNKNOWN that uses up no check."""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How an outbox stands. Ages are seconds by the database's clock, `None` where there is no such row."""

    waiting: int = 0
    """Rows in LOCAL_COMMIT."""
    oldest: float | None = None
    """Age of the oldest of them."""
    prepared: int = 0
    oldest_prepared: float | None = None
    parked: int = 0
    oldest_parked: float | None = None
    owners: Mapping[str, int] = field(default_factory=dict)
    """Relays whose lease is alive, with the number of their shards."""
    relay_kind: str | None = None
    """What sends the rows: `"table"`, `"cdc"`, or `None` before the first relay."""
    delayed: int = 0
    """Rows in LOCAL_COMMIT that were given a time; they are not among those that wait."""
    expired: int = 0
    """Rows in EXPIRED that were not cleaned up yet."""


def next_check(checks: int, *, limit: int = MAX_CHECKS, every: float = NEXT_CHECK) -> float | None:
    """Seconds until a row is checked again that has had `checks` answered checks, this one included; `None`: it is parked."""
    return every if checks < limit else None


def retry_delay(attempts: int, *, rng: random.Random | None = None) -> float:
    """Seconds until a send is repeated that has failed `attempts` times: 1 s × 1.6^(n-1), at most 120 s, ± 20 % at random.

    These are the numbers of gRPC's connection back-off, which RocketMQ's producers of version 5 use too.
    """
    delay = min(120.0, 1.6 ** max(0, attempts - 1))
    return float(delay * (rng or random).uniform(0.8, 1.2))


class OutboxTransaction(Protocol):
    """What is to be sent if the transaction that it belongs to commits."""

    def add(self, message: Outgoing, *, delay: Delay = None, at: At = None, expires: Expires = None) -> str:
        """Put `message` among the rows of this transaction, in the order of the calls; returns its message id.

        With `delay` (seconds, or a text such as `"5m"`) or `at` (an aware datetime, or epoch seconds) it is sent then, by the database's
        clock, outside of the order of its key. If no send of it has started by `expires` (as `delay`, or an aware datetime) it is never
        sent. Raises `TransactionAborted` once the transaction has ended, and `ConfigurationError` for what no row can hold.
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
        delay: Delay = None,
        at: At = None,
        expires: Expires = None,
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
        """Rows for the transaction that is open on `connection`, which the caller manages.

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
        delay: Delay = None,
        at: At = None,
        expires: Expires = None,
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
        """Forget the kind, so that the other one may start. Raises `ConfigurationError` while the lease of a relay is alive."""
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
        most: int = MOST_BYTES,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> list[OutboxRow]:
        """Up to `limit` rows in LOCAL_COMMIT that are due, of `shards`, by id; fewer if they have `most` bytes, but at least one.

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

    async def begin(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Begun:
        """Sends of these rows, which may expire, are about to start: take their expiry away from those whose time is not over."""
        ...

    async def expire(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        """Make EXPIRED of those whose time is over, and no send of which has started; returns how many."""
        ...

    waits_behind: bool
    """Whether a row may wait behind another one, as far as this object knows; then `free` is to be called after `sent`."""

    has_more: bool
    """Whether the last `pending` came to its bound before it came to the last row that waits behind another: then ask again."""

    async def free(self, *, block_key: bool = True) -> bool:
        """Let rows go on whose key has no earlier row any more that they wait for: a portion of them, the first of each key.

        Returns whether there are more keys to look at, where the next call goes on. A relay calls it at its start, after `sent` and every
        few seconds, beside the rest; where it fails, nothing else does.
        """
        ...

    async def hold(self, ids: Collection[int]) -> set[int]:
        """Let rows wait behind an earlier one of their key; returns the ids of those that are there to be sent."""
        ...

    async def wait_for_rows(self, at_most: float) -> bool:
        """Return True when rows may have come since `pending` was last called: a commit in this process, a notification of the database.

        Return False after `at_most` seconds.
        """
        ...

    async def holders(self, *, limit: int = 500, after: int = 0) -> list[Holder]:
        """Rows that could not be sent, by id from above `after`: those that are tried again, and parked ones."""
        ...

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        """Seconds until the next row of `shards` is due, again after a failure or by its own time; `None` if none waits."""
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
        self,
        messages: Sequence[Outgoing],
        tx_id: str,
        *,
        producer_group: str,
        barrier_in: str = "",
        first_check: float = FIRST_CHECK,
        timing: Timing = AT_ONCE,
    ) -> None:
        """Write rows in PREPARED, in their own transaction. The `timing` is that of all, and counts from their COMMIT."""
        ...

    async def save(self, messages: Sequence[Outgoing]) -> None:
        """Write rows to be sent, in their own transaction. Raises `StoreUnavailable`; then whether they are there is unknown."""
        ...

    async def decide(self, tx_id: str, outcome: TransactionOutcome) -> int:
        """PREPARED → LOCAL_COMMIT or LOCAL_ROLLBACK, by compare-and-set; returns the number of rows that changed.

        UNKNOWN changes nothing: the check-back asks.
        """
        ...

    async def states_of(self, tx_id: str) -> Collection[RowState]:
        """Return the states of the rows of this local transaction; those that were sent may be deleted."""
        ...

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        """Rows in PREPARED that are due for a check-back; no other caller gets them for `lease` seconds.

        `None`: of all groups, those whose barrier is in this database.
        """
        ...

    async def answered(self, answers: Sequence[CheckAnswer]) -> int:
        """Write down answers to check-backs: a decision, one more check, or MESSAGE_ERROR; returns the number of rows that changed.

        By compare-and-set on PREPARED, together with the content if the answer has one: of two contents the first is sent.
        """
        ...


class OutboxStore(Outbox, RelayStore, PreparedStore, Protocol):
    """An outbox in one database. It is `Maintained` as well. `ackwise.stores.conformance` has the suite that every outbox passes."""

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

    async def expired(self, *, limit: int = 100, after: int = 0) -> list[Parked]:
        """Rows in EXPIRED by id, from above `after`."""
        ...

    async def show(self, row: int) -> Parked | None:
        """One parked row with headers and value."""
        ...

    async def prepared(self, *, limit: int = 100, after: int = 0) -> list[HalfMessage]:
        """Rows in PREPARED by id, from above `after`."""
        ...

    async def requeue(self, rows: Collection[int] | None = None) -> int:
        """MESSAGE_ERROR → LOCAL_COMMIT with attempts 0, for `rows` or all; returns how many."""
        ...
