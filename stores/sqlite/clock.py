"""The clock of a SQLite file: the host's wall clock, unless a clock that can't be set shows that it jumped.

A wall clock that is set forward by two days would make a store forget every finished key, and end every lease. So the file keeps
the newest instant that it was used at, beside what the host's uptime was; from there on uptime says how late it is. Where the
wall clock says otherwise, it is not believed until that has lasted an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ackwise.middleware.log import Log
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps

log = Log()

TABLE: Final = """
CREATE TABLE IF NOT EXISTS ackwise_clock (
    part TEXT PRIMARY KEY,
    now REAL NOT NULL,
    wall REAL NOT NULL,
    uptime REAL NOT NULL,
    boot TEXT NOT NULL,
    doubted REAL
) WITHOUT ROWID
"""
_READ: Final = "SELECT now, wall, uptime, boot, doubted FROM ackwise_clock WHERE part = ?"
_WRITE: Final = "INSERT OR REPLACE INTO ackwise_clock VALUES (?, ?, ?, ?, ?, ?)"

#: Seconds that wall clock and uptime may differ by; a step that is smaller ends no lease that its owner still counts on.
_TOLERANCE: Final = 1.0

#: Seconds for which the wall clock has to say the same before it is believed.
_DOUBT: Final = 3600.0

#: Seconds between two stamps of a file whose clocks agree.
_STAMP_EVERY: Final = 1.0


class Clocks(NamedTuple):
    """The clocks of a host."""

    wall: Callable[[], float]
    """Seconds since 1970, of the clock that can be set."""
    uptime: Callable[[], float]
    """Seconds that can't be set, the same for all processes; they go on while the host sleeps."""
    boot: str
    """Uptimes of the same text can be compared. Those of two can if the clocks agree on when the host was started."""


class Stamp(NamedTuple):
    """The stored time of a file."""

    now: float
    wall: float
    uptime: float
    boot: str
    doubted: float | None = None
    """Seconds that the wall clock has been in doubt; `None` while it is believed."""


class Instant(NamedTuple):
    """How late it is for a file."""

    now: float
    keep_from: float
    """From when a retention counts. While the wall clock is in doubt, the later of both: whichever is right, nothing is forgotten early."""
    jump: float = 0.0
    """What the file's clock was just set by, since the wall clock is believed again; leases that run are to be moved with it."""


def _host() -> Clocks:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        # Not Linux. Where this clock is stalled while the host sleeps, the wall clock is in doubt for an hour afterwards.
        return Clocks(time.time, time.monotonic, "")
    return Clocks(time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME), _boot(Path("/proc")))


def _boot(proc: Path) -> str:
    """The start of this host that the uptime counts from. Time namespaces of one host count from their own times: time_namespaces(7)."""
    try:
        return f"{(proc / 'sys/kernel/random/boot_id').read_text().strip()} {_time_namespace(proc)}".strip()
    except OSError:
        return ""


def _time_namespace(proc: Path) -> str:
    try:
        return str((proc / "self/ns/time").readlink())
    except OSError:  # kernels before 5.6 have none
        return ""


_HOST: Final = _host()


def clocks_of(clock: Callable[[], float] | Clocks) -> Clocks:
    """The clocks that a store was given; a wall clock other than the host's own has nothing to be compared with."""
    if isinstance(clock, Clocks):
        return clock
    return _HOST if clock is time.time else Clocks(clock, clock, "")


def advance(stamp: Stamp | None, wall: float, uptime: float, boot: str) -> Stamp:
    """Return the state of the file after `stamp`."""
    if stamp is None:
        return Stamp(wall, wall, uptime, boot)
    elapsed = _elapsed(stamp, wall, uptime, boot)
    expected = stamp.now + (elapsed or 0.0)  # how long the host was off, only the wall clock could tell
    if abs(wall - expected) <= _TOLERANCE:
        return Stamp(wall, wall, uptime, boot)
    if stamp.doubted is None:
        return Stamp(expected, wall, uptime, boot, 0.0)
    doubted = stamp.doubted + (max(0.0, wall - stamp.wall) if elapsed is None else elapsed)
    return Stamp(expected, wall, uptime, boot, doubted) if doubted < _DOUBT else Stamp(wall, wall, uptime, boot)


def _elapsed(stamp: Stamp, wall: float, uptime: float, boot: str) -> float | None:
    """Seconds since the stamp; `None` if the host was started since."""
    # Containers of one host may have their own boot ids, and its uptime. When it started, their clocks agree on.
    is_same_start = boot == stamp.boot or abs((wall - uptime) - (stamp.wall - stamp.uptime)) <= _TOLERANCE
    return uptime - stamp.uptime if is_same_start and uptime >= stamp.uptime else None


class FileClock:
    """The clock of one part of a file, in one process."""

    def __init__(self, part: str, path: Path, clocks: Clocks) -> None:
        self._part, self._path, self._clocks, self._read = part, path, clocks, _reading(part)
        self._is_doubted = False

    def instant(self, begin: Packet, then: Packet) -> Steps[tuple[Instant, Sequence[Answer]]]:
        """How late it is after `start`, and the answers of what comes `then`; writes down what the file has to know of it.

        In a transaction that writes.
        """
        before, after, answers = yield from _look(self._read, self._clocks, begin, then)
        if before is None or after.doubted is not None or before.doubted is not None or after.now - before.now >= _STAMP_EVERY:
            yield [Statement(_WRITE, (self._part, *after))]
        self._log_doubt(after)
        jump = 0.0 if before is None else after.now - before.now - (_elapsed(before, after.wall, after.uptime, after.boot) or 0.0)
        return Instant(after.now, max(after.now, after.wall), jump if abs(jump) > _TOLERANCE else 0.0), answers

    def _log_doubt(self, stamp: Stamp) -> None:
        doubts = stamp.doubted is not None
        if doubts and not self._is_doubted:
            log.warning(
                "wall clock jumped",
                file=str(self._path),
                seconds=round(stamp.wall - stamp.now),
            )
        elif self._is_doubted and not doubts:
            log.info("the wall clock is believed again", file=str(self._path))
        self._is_doubted = doubts


def latest(part: str, clock: Callable[[], float] | Clocks) -> Steps[float]:
    """How late it is for a part of a file, which is not changed by asking."""
    _, stamp, _ = yield from _look(_reading(part), clocks_of(clock))
    return stamp.now


def doubt(part: str, clock: Callable[[], float] | Clocks) -> Steps[list[str]]:
    """A sentence if the wall clock is not believed."""
    try:
        _, stamp, _ = yield from _look(_reading(part), clocks_of(clock))
    except Failure as failure:
        if failure.problem is not Problem.MISSING:
            raise
        return []  # an outbox keeps no clock
    ahead = stamp.wall - stamp.now
    if abs(ahead) <= _TOLERANCE:
        return []
    way = "ahead of" if ahead > 0 else "behind"
    return [
        f"the wall clock is {abs(ahead):.0f} s {way} what the file counts, after a jump or while it was unused; "
        "nothing is forgotten until that has lasted an hour of work, so set the clock right if it is wrong"
    ]


def _reading(part: str) -> Statement:
    return Statement(_READ, (part,))


def _look(read: Statement, clocks: Clocks, begin: Packet = (), then: Packet = ()) -> Steps[tuple[Stamp | None, Stamp, Sequence[Answer]]]:
    answers = yield [*begin, read, *then]
    (rows, _), others = answers[len(begin)], answers[len(begin) + 1 :]
    before = Stamp(*rows[0]) if rows else None
    return before, advance(before, clocks.wall(), clocks.uptime(), clocks.boot), others
