"""`SQLiteStore`: claims in one SQLite file, for the workers of one host.

Workers on other hosts do not see the file. After a rebalance to another host, or onto a fresh volume, completed messages run again.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.claimstore import Exchange, ExchangeResult, Outcome, Remembered, hash_of
from ackwise.stores.protocol.options import CLAIMS
from ackwise.stores.protocol.transitions import Record, decide
from ackwise.stores.sql.claims import PAGE, Page, SQLClaims
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.schema import Maintenance
from ackwise.stores.sqlite.clock import Clocks, FileClock, clocks_of, latest
from ackwise.stores.sqlite.driver import File, FileThread, parse, seconds
from ackwise.stores.sqlite.schema import CLAIMS as _PART
from ackwise.stores.sqlite.schema import clean, complaints, no_file, require_set_up, set_up

# A batch is read by one statement and written by one, through JSON. One statement per key is faster as long as the event
# loop rests; but each gives up the interpreter's lock, which a busy loop hands back only every few milliseconds.
_READ: Final = """
SELECT json_group_object(place, json_array(token, epoch, next_attempt, lost, took_unreleased, outcome, leased_until, kept_until, owner))
FROM json_each(?) CROSS JOIN ackwise_claims ON place = value
"""
_WRITE: Final = f"""
INSERT OR REPLACE INTO ackwise_claims (place, {", ".join(Record._fields)}, owner)
SELECT {", ".join(f"json_extract(value, '$[{i}]')" for i in range(2 + len(Record._fields)))} FROM json_each(?)
"""
_LISTED: Final = f"""
SELECT place, outcome, token, owner, leased_until, kept_until FROM ackwise_claims WHERE place > ? ORDER BY place LIMIT {PAGE}
"""
_MOVE_LEASES: Final = "UPDATE ackwise_claims SET leased_until = leased_until + ? WHERE outcome IS NULL AND token <> 0"
_FORGET: Final = """
DELETE FROM ackwise_claims WHERE place IN (SELECT place FROM ackwise_claims WHERE kept_until <= ? LIMIT ?)
"""
_FORGET_AT_ONCE: Final = 1000
"""Rows; an exchange that cleans up takes some milliseconds longer."""
_FORGET_EVERY: Final = 1.0
"""Seconds between two looks for forgotten records, unless the last one found as many as it may delete."""


# IMMEDIATE: a transaction that first reads and then wants to write can't wait for another writer, it fails at once.
_BEGIN: Final = [Statement("BEGIN IMMEDIATE")]
_COMMIT: Final = Statement("COMMIT")


class SQLiteStore(SQLClaims[FileThread]):
    """A claim store in the SQLite file at `path`; any number of processes of one host may share it.

    `synchronous` is SQLite's: with `normal` a killed process loses nothing, and a power failure may take the last exchanges
    with it, so that their messages run again; `full` waits for the disk and survives that too.
    A process that is stopped in the middle of an exchange (SIGSTOP, a debugger) keeps the file's lock: the others pause until it
    goes on or dies. Nothing is lost by it.
    `timeout` (seconds) is how long an exchange waits for other writers of the file before it raises `StoreUnavailable`.
    `clock` gives wall-clock seconds, which is what the processes of one host have in common. The host's own is compared with its
    uptime: where it jumps, neither leases nor what is remembered end early (`stores/sqlite/clock.py`).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "normal",
        timeout: float = 5.0,
        clock: Callable[[], float] | Clocks = time.time,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise ConfigurationError("a SQLite store needs the path of a file; for claims that end with the process use memory://")
        if synchronous not in ("normal", "full"):
            raise ConfigurationError(f"synchronous is {synchronous!r} for the SQLite store; it can be normal or full")
        self._file = File(CLAIMS, path, timeout, "an exchange")
        self._synchronous, self._clock = synchronous, clock
        address, made = str(self._file.path), functools.partial(set_up, _PART, str(self._file.path))
        maintenance = Maintenance(made, made, lambda: complaints(address, _PART, clock), lambda: clean(address, _PART, clock))
        listed = functools.partial(_listed, address, clock)
        super().__init__(FileThread(self._file, synchronous), _Claims(self._file, clock).exchange, maintenance, listed)

    async def init(self) -> None:
        """Create the file and its tables if need be, as `open` does. Raises as `open` does."""
        another = SQLiteStore(self._file.path, synchronous=self._synchronous, timeout=self._file.timeout)
        await another.open()
        await another.close()

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        return no_file(self._file) or await super().check()


class _Claims:
    """The claims of a file. SQLite can't decide: the records are read, `decide` says what is written, and a transaction holds both."""

    def __init__(self, file: File, clock: Callable[[], float] | Clocks) -> None:
        self._file_clock = FileClock(_PART.name, file.path, clocks_of(clock))
        self._forgot_at: float | None = None

    def exchange(self, exchange: Exchange) -> Steps[ExchangeResult]:
        """Apply everything; forgets now and then what `decide` takes for unknown anyway."""
        # Asked after the wait for the other writers: a lease starts when it is granted.
        read = _read(exchange)
        (now, keep_from, jump), (found,) = yield from self._file_clock.instant(_BEGIN, [read])
        if jump:
            _, found = yield [Statement(_MOVE_LEASES, (jump,)), read]
        records = {name: _record(*columns) for name, columns in json.loads(found.rows[0][0]).items()}
        result, written = decide(lambda place: records.get(_name(*place)), exchange, now)
        rows = [(_name(*place), *record[:-1], record.kept_until + keep_from - now, record.owner) for place, record in written.items()]
        writes = [Statement(_WRITE, (json.dumps(rows),))] if rows else []
        if self._forgot_at is not None and abs(now - self._forgot_at) < _FORGET_EVERY:
            yield [*writes, _COMMIT]
        else:
            *_, forgotten, _ = yield [*writes, Statement(_FORGET, (now, _FORGET_AT_ONCE)), _COMMIT]
            self._forgot_at = None if forgotten.changed == _FORGET_AT_ONCE else now
        return result


def _listed(address: str, clock: Callable[[], float] | Clocks, after: str | None) -> Steps[Page]:
    """List the records in the order of their places."""
    yield from require_set_up(address, _PART)
    now = yield from latest(_PART.name, clock)
    (found,) = yield [Statement(_LISTED, (after or "",))]
    records = [_remembered(*row, now=_micros(now)) for row in found.rows if row[5] > now]
    return Page(records, found.rows[-1][0] if len(found.rows) == PAGE else None)


def _remembered(place: str, outcome: int | None, token: int, owner: str, leased_until: float, kept_until: float, *, now: int) -> Remembered:
    key_id, is_open = bytes.fromhex(place.partition("/")[0]), outcome is None
    times = _micros(leased_until), _micros(kept_until)
    return Remembered(hash_of(key_id), place, outcome or 0, is_open and token != 0, not is_open and owner != "", *times, now)


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def from_url(url: str) -> SQLiteStore:
    """Return the store that `sqlite:///relative/path` or `sqlite:////absolute/path` names.

    Options follow as a query: `?synchronous=full&timeout=2.5`. Raises `ConfigurationError`.
    """
    path, options = parse(url, "SQLite store", "synchronous", "timeout")
    timeout = seconds(options.get("timeout", "5"), "SQLite store")
    return SQLiteStore(path, synchronous=options.get("synchronous", "normal"), timeout=timeout)


def _read(exchange: Exchange) -> Statement:
    requests = (exchange.completes, exchange.releases, exchange.renews, exchange.claims)
    names = [_name(request.key.id, request.key.day) for kind in requests for request in kind]
    return Statement(_READ, (json.dumps(names),))


def _name(id: bytes, day: int | None) -> str:
    return id.hex() if day is None else f"{id.hex()}/{day}"


def _record(
    token: int,
    epoch: int,
    next_attempt: int,
    lost: int,
    took_unreleased: int,
    outcome: int | None,
    leased_until: float,
    kept_until: float,
    owner: str,
) -> Record:
    finished = None if outcome is None else Outcome(outcome)
    return Record(token, epoch, next_attempt, lost, bool(took_unreleased), finished, leased_until, kept_until).held_by(owner)
