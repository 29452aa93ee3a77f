"""The parts that every outbox shares: messages as columns of a row, owners of shards, retention, and wake-ups.

`Keeping` says how long sent rows stay and which columns. `Wakes` wakes this process's relays after a commit, in any event loop.
`Buffer` holds the unwritten messages of a transaction.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.outgoing import Outgoing, new_message_id
from ackwise.middleware.storage.outbox import (
    CheckAnswer,
    HalfMessage,
    Holder,
    OutboxRow,
    Parked,
    Prepared,
    RowState,
    TransactionOutcome,
    UnreadableRow,
    key_hash,
    packed_headers,
    shard_of,
    unpacked_headers,
)
from ackwise.middleware.storage.rowtime import AT_ONCE, At, Delay, Expires, Timing, timing_of


class Shard(NamedTuple):
    """A shard as the database has it."""

    number: int
    token: int
    owner: str
    """Empty if it is free."""
    is_leased: bool
    """True while the owner's lease is valid, by the database's clock."""


class Division(NamedTuple):
    """The changes that `own` makes, by shard number."""

    keep: list[int]
    take: list[int]
    """Their tokens grow by one."""
    give: list[int]


def divide(shards: Sequence[Shard], owner: str, share: int) -> Division:
    """Return what `owner` keeps, takes and gives back, so that it has `share` shards if enough are free or expired.

    An own shard whose lease has passed is kept if no relay took it, with its token: no relay wrote meanwhile.
    """
    mine = [shard.number for shard in shards if shard.owner == owner]
    free = [shard.number for shard in shards if shard.owner != owner and not (shard.owner and shard.is_leased)]
    keep, give = mine[:share], mine[share:]
    return Division(keep, free[: max(0, share - len(keep))], give)


class LeaseClock:
    """Whether the database's clock may end the leases of others: not for a lease after it has jumped ahead of this machine's.

    The owner counts its lease by the monotonic clock of its own machine, and goes on until that ends. `clock` is this one's, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead: float | None = None  #: of the database's clock, when it was seen last
        self._trusted_from = float("-inf")

    def is_trusted(self, database_now: float, lease: float) -> bool:
        """Return it, from a time of the database (seconds since 1970). What has not been seen before is trusted."""
        now = self._clock()
        ahead, before = database_now - now, self._ahead
        self._ahead = ahead
        if before is not None and ahead - before > lease / 4:
            self._trusted_from = now + lease
        return now >= self._trusted_from


#: Characters of a cause that a row keeps.
CAUSE: Final = 500

#: Seconds that a barrier is kept at least: the half message that it is for may be in another database, where a check-back may be late.
BARRIERS_KEPT: Final = 30 * 86400.0

#: What becomes of a half message.
DECIDED: Final = {
    TransactionOutcome.COMMIT: RowState.LOCAL_COMMIT,
    TransactionOutcome.ROLLBACK: RowState.LOCAL_ROLLBACK,
    TransactionOutcome.UNKNOWN: RowState.PREPARED,
}


class RowColumns(NamedTuple):
    """The inserted columns of a message."""

    message_id: str
    shard: int
    topic: str
    message_key: bytes | None
    key_hash: int | None
    partition: int | None
    headers: str | None
    value: bytes | None
    size: int
    """Bytes of value, key and headers."""
    due: float | None = None
    expires: float | None = None
    """See `Timing`, as both are before the row is to be sent."""

    @property
    def is_timed(self) -> bool:
        """Return whether it has a time."""
        return self.due is not None or self.expires is not None


#: The columns of a row without a time.
UNTIMED: Final = RowColumns._fields[:-2]


def columns_of(message: Outgoing, timing: Timing = AT_ONCE) -> RowColumns:
    """Return the columns of `message`; one that is delayed has no key to wait for, or to hold.

    Raises `ConfigurationError` for what no text of a database can hold.
    """
    headers = packed_headers(message.all_headers)
    try:
        message.message_id.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"message_id of a message to {message.topic!r} is no valid text ({message.message_id!r}); give one that UTF-8 can write"
        ) from None
    return RowColumns(
        message.message_id,
        shard_of(message),
        message.topic,
        message.key,
        None if message.key is None or timing.due is not None else key_hash(message.topic, message.key),
        message.partition,
        headers,
        message.value,
        len(message.value or b"") + len(message.key or b"") + len(headers or ""),
        *timing,
    )


def state_of(answer: CheckAnswer) -> RowState:
    """Return what an answer to a check-back makes of a half message."""
    is_parked = answer.outcome is TransactionOutcome.UNKNOWN and answer.again_in is None
    return RowState.MESSAGE_ERROR if is_parked else DECIDED[answer.outcome]


def cause_of(text: str) -> str:
    """Return what a row keeps of a cause."""
    return text[:CAUSE].encode("utf-8", "replace").decode()


def text_of(value: str | bytes) -> str:
    """Return a text, which some databases keep as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def row_of(row: Sequence[Any]) -> OutboxRow:
    """Return the row for a relay. Raises `UnreadableRow`."""
    id, shard, attempts, created_ms, _size, _is_blocked, is_delayed, expires, *message = row
    return read_row(id, shard, attempts, created_ms, *message)._replace(is_delayed=bool(is_delayed), expires=bool(expires))


def read_row(id: int, shard: int, attempts: Any, created_ms: Any, topic: Any, *message: Any) -> OutboxRow:
    """Return the row of these columns. Raises `UnreadableRow`, whatever another program wrote there."""
    try:
        return OutboxRow(id, shard, _message(topic, *message), int(attempts), int(created_ms))
    except Exception as error:  # noqa: BLE001  # see above
        raise _unreadable(id, shard, topic, error) from None


def prepared_of(row: Sequence[Any]) -> Prepared:
    """Return the row for a check-back. Raises `UnreadableRow`."""
    id, tx_id, checks, created_ms, producer_group, barrier_in, is_delayed, topic, *message = row
    try:
        names = text_of(producer_group), text_of(barrier_in)
        return Prepared(id, _message(topic, *message), text_of(tx_id), int(checks), int(created_ms), *names, bool(is_delayed))
    except Exception as error:  # noqa: BLE001  # see `read_row`
        raise _unreadable(id, 0, topic, error) from None


def half_message_of(row: Sequence[Any]) -> HalfMessage:
    """Return a row in PREPARED, with what can be shown of each column."""
    id, topic, message_id, tx_id, producer_group, checks, created_ms = row
    names = shown_text(topic), shown_text(message_id), shown_text(tx_id), shown_text(producer_group)
    return HalfMessage(id, *names, _number(checks), _number(created_ms))


def holder_of(row: Sequence[Any]) -> Holder:
    """Return the row that could not be sent, with what can be read of it."""
    id, topic, key, state = row
    return Holder(id, shown_text(topic), _bytes(key), state == RowState.MESSAGE_ERROR)


def parked_of(row: Sequence[Any]) -> Parked:
    """Return a parked row, with what can be shown of each column."""
    id, topic, message_id, key, attempts, checks, cause, created_ms, headers, value = row
    numbers = _number(attempts), _number(checks), shown_text(cause or ""), _number(created_ms)
    payload = _headers_as_far_as_readable(headers), _bytes(value)
    return Parked(id, shown_text(topic), shown_text(message_id), _bytes(key), *numbers, *payload)


def shown_text(value: object) -> str:
    """Return a text as it can be printed, whatever is in its column."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _bytes(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _number(value: Any) -> int:
    """The number; 0 for what is none."""
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        return 0


def _message(
    topic: str | bytes, value: bytes | None, key: bytes | None, headers: str | None, partition: int | None, message_id: str | bytes
) -> Outgoing:
    return Outgoing(text_of(topic), value, key, unpacked_headers(headers), partition, message_id=text_of(message_id))


def _unreadable(id: int, shard: int, topic: object, error: Exception) -> UnreadableRow:
    why = shown_text(error) if isinstance(error, ConfigurationError) else f"one of its columns, {type(error).__name__}"
    return UnreadableRow(id, shard, shown_text(topic), why)


def _headers_as_far_as_readable(packed: str | None) -> Headers:
    """The headers; none of a text that is parked because it is unreadable."""
    try:
        return tuple((shown_text(name), value) for name, value in unpacked_headers(packed))
    except Exception:  # noqa: BLE001  # see `read_row`
        return ()


#: What of a row may be blanked, and the column that it is in.
PAYLOAD: Final = {"value": "value", "key": "message_key", "headers": "headers"}

_OPTIONS: Final = ("keep_sent", "keep_parked", "blank")


@dataclass(frozen=True, slots=True)
class Keeping:
    """Times are seconds. Raises `ConfigurationError`."""

    retention: float = 86400.0
    """`cleanup` deletes what was rolled back and is older."""
    sent: float = 0.0
    """A row that was sent stays for so long, in state GLOBAL_COMMIT; 0: it is deleted at once."""
    parked: float | None = None
    """`cleanup` deletes parked rows that are older, unsent; `None`: they stay until they are requeued."""
    blank: Collection[str] = tuple(PAYLOAD)
    """The columns to blank in a sent row that is kept."""

    def __post_init__(self) -> None:
        _require_seconds("retention", self.retention, "that what was rolled back is kept")
        _require_seconds("keep_sent", self.sent, "that sent rows are kept")
        if self.parked is not None:
            _require_seconds("keep_parked", self.parked, "that parked rows are kept")
        if isinstance(self.blank, str) or (set(self.blank) - set(PAYLOAD)):
            raise ConfigurationError(f"blank is {self.blank!r}; name what of a sent row is removed, some of {', '.join(PAYLOAD)}")

    @property
    def blanked(self) -> list[str]:
        """The columns that become NULL."""
        return [column for what, column in PAYLOAD.items() if what in self.blank]

    def without(self, message: Outgoing) -> Outgoing:
        """Return `message` as a row that was sent keeps it."""
        return dataclasses.replace(
            message,
            value=None if "value" in self.blank else message.value,
            key=None if "key" in self.blank else message.key,
            headers=() if "headers" in self.blank else message.headers,
        )

    @property
    def given(self) -> dict[str, Any]:
        """The retention arguments of an outbox; they are not options of a URL."""
        return {"keep_sent": self.sent, "keep_parked": self.parked, "blank": self.blank}

    def __str__(self) -> str:
        return f"{self._sent}, {self._parked}"

    @property
    def _sent(self) -> str:
        if not self.sent:
            return "sent rows are deleted"
        without = " and ".join(what for what in PAYLOAD if what in self.blank)
        return f"sent rows stay for {self.sent:g} s" + (f" without {without}" if without else " with all that they say")

    @property
    def _parked(self) -> str:
        if self.parked is None:
            return "parked rows stay until they are requeued"
        return f"cleanup deletes parked rows of {self.parked:g} s unsent"


def keeping_of(url: str) -> tuple[str, Keeping]:
    """Return `url` without the options that are about keeping rows, and what they say. Raises `ConfigurationError`."""
    before, mark, query = url.rpartition("?")
    if not mark:
        return url, Keeping()
    options = [part.partition("=") for part in query.split("&")]
    ours = {name: unquote_plus(text) for name, _, text in options if name in _OPTIONS}
    rest = "&".join(name + equals + text for name, equals, text in options if name not in _OPTIONS)
    return before + (mark + rest if rest else ""), Keeping(
        sent=_seconds("keep_sent", ours.get("keep_sent", "0")),
        parked=_seconds("keep_parked", ours["keep_parked"]) if "keep_parked" in ours else None,
        blank=tuple(filter(None, ours["blank"].split(","))) if "blank" in ours else tuple(PAYLOAD),
    )


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text!r} in the URL of the outbox; give seconds, such as {name}=604800") from None


def _require_seconds(name: str, seconds: float, meaning: str) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{name} is {seconds!r}; give the seconds {meaning}, 0 or more")


_ALL: Final[dict[str, Wakes]] = {}
_LOCK: Final = threading.Lock()


class Wakes:
    """The commits of one outbox, counted; and who waits for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def count(self) -> int:
        """How many commits there were."""
        return self._count

    def wake(self) -> None:
        """There was one more. Any thread may call it."""
        with self._lock:
            self._count += 1
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # its loop was closed while it waited
                continue

    def begin(self, seen: int) -> Waiter:
        """Return what waits for a commit beyond those that were `seen`."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._count != seen:
                event.set()
            else:
                self._waiting.add(entry)
        return Waiter(self, entry)

    def forget(self, entry: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """There is no waiter any more."""
        with self._lock:
            self._waiting.discard(entry)


class Waiter:
    """One wait; `event` is set by the next commit."""

    def __init__(self, wakes: Wakes, entry: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        self._wakes, self._entry = wakes, entry
        self.event = entry[1]

    async def wait(self, at_most: float) -> bool:
        """Wait `at_most` seconds; return True if a commit came."""
        try:
            async with asyncio.timeout(at_most):
                await self.event.wait()
        except TimeoutError:
            return False
        finally:
            self._wakes.forget(self._entry)
        return True


def wakes_of(place: str) -> Wakes:
    """Return the `Wakes` of the outbox at `place`, a text that is the same for all who name the same one in this process."""
    with _LOCK:
        return _ALL.setdefault(place, Wakes())


BROKEN: Final = (
    "the transaction of the outbox failed before its rows were written, because an error of {database} was caught inside it; nothing of it "
    "stays: let the error pass, or run what may fail in a savepoint"
)
_CLOSED: Final = (
    "add or send was called after its transaction of the outbox had ended; send inside the block of outbox.transaction(connection)"
)


class Sending(abc.ABC):
    """`send` of a transaction, and of an outbox."""

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
        message_id = new_message_id() if message_id is None else message_id
        message = Outgoing(topic, value, key, headers, partition, message_id=message_id)
        return self._target().add(message, delay=delay, at=at, expires=expires)

    @abc.abstractmethod
    def _target(self) -> Buffer:
        """Return the transaction that a message becomes part of."""


class Buffer(Sending):
    """The added and unwritten messages, in the order of the calls; the part of an `OutboxTransaction` that needs no I/O."""

    def __init__(self) -> None:
        self.rows: list[RowColumns] = []
        self.has_written = False  #: whether rows of it went to the database
        self._closed = ""  #: why nothing is added any more
        self.connection: Any = None
        self.around: Buffer | None = None  #: the block around this one, on any connection
        self.inner: Buffer | None = None  #: an open block inside this one, on the same connection

    def close(self, why: str = _CLOSED) -> None:
        """Take no messages any more."""
        self._closed = self._closed or why

    def add(self, message: Outgoing, *, delay: Delay = None, at: At = None, expires: Expires = None) -> str:
        if self._closed:
            raise TransactionAborted(self._closed)
        if self.inner is not None:  # two buffers would be written out of the order of the calls
            return self.inner.add(message, delay=delay, at=at, expires=expires)
        self._put(message, timing_of(delay, at, expires))
        return message.message_id

    def _put(self, message: Outgoing, timing: Timing) -> None:
        self.rows.append(columns_of(message, timing))

    def _target(self) -> Buffer:
        return self

    def written(self, count: int) -> None:
        """The first `count` rows are in the database."""
        del self.rows[:count]
        self.has_written = True


class Sends(Sending):
    """`Outbox.send` for an outbox: the transaction that is open around the call, in this task or in one that it started."""

    def __init__(self) -> None:
        self._current: ContextVar[Buffer | None] = ContextVar("ackwise outbox transaction", default=None)

    @contextmanager
    def within(self, transaction: Buffer, connection: Any) -> Iterator[None]:
        """Until the block ends, `send` means `transaction`, which is on `connection`, and so does a block around it on that connection."""
        transaction.connection = connection
        before = transaction.around = self._current.get()
        outer = before
        while outer is not None and outer.connection is not connection:
            outer = outer.around
        self._current.set(transaction)
        if outer is not None:
            outer.inner = transaction
        try:
            yield
        finally:
            if outer is not None:
                outer.inner = None
            # A token would be refused where the block is left in another context, as a fixture or a generator may.
            if self._current.get() is transaction:
                self._current.set(before)

    def _target(self) -> Buffer:
        transaction = self._current.get()
        if transaction is None:
            raise TransactionAborted(
                "outbox.send was called outside of a transaction of this outbox; "
                "call it inside `async with outbox.transaction(connection):`"
            )
        return transaction
