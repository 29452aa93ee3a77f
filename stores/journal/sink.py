"""The event journal: the sink that the pipeline and the hosts record into."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import unquote

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable
from ackwise.middleware.eventlog import EventBuffer, LogHeader
from ackwise.middleware.events import Durable, Event, EventCode
from ackwise.middleware.log import Log, said
from ackwise.stores.journal.layout import FILE_MODE, boot_id, make_directory, sync_directory
from ackwise.stores.journal.log import LogWriter, explain
from ackwise.stores.journal.recovery import Recovery, has_left
from ackwise.stores.journal.roller import Roller, missing_package

log = Log("ackwise.events")

Mode = Literal["before_settle", "async"]

MOST_BEHIND: Final = 100_000
"""Events, about 16 MB: from here on `async` waits for the disk, since it may neither drop events nor fill the memory."""

_LONGEST_CLOSE: Final = 30.0  # seconds that `close` waits for files to be rolled, which takes a second or two
_TO_ROLL: Final = "start a worker on this folder or run `ackwise reconcile`"


class Journal:
    """Events of one process and one event loop: in memory when recorded, in a log when flushed, in Parquet when rolled.

    `before_settle`: a flush that returned has made everything durable. `async`: a flush returns at once, and the disk
    follows within `flush_seconds` or `flush_events`; what a crash takes is then unknown, and SESSION_START says so.

    `marks` says that `mark` is called before each handler: a promise of the caller's, which SESSION_START repeats. Leave it out in a sink
    of your own around a journal, unless that has a `mark` which calls this one. In `async` there are no start marks: it does not wait
    for the disk.

    Files are made with `file_mode`, and folders so that whoever may read the files finds them.

    `attrs` are facts for SESSION_START: level table, lease, retention, sources, roles. A log file is rolled at the
    flush after it has `roll_events` or is `roll_seconds` old. The journal itself writes a HEARTBEAT every
    `heartbeat_seconds`; for the reconciliation a writer without any is dead. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        group_id: str,
        cluster: str | None = None,
        client: str | None = None,
        attrs: Mapping[str, object] | None = None,
        mode: Mode = "before_settle",
        marks: bool = False,
        roll_events: int = 100_000,
        roll_seconds: float = 60.0,
        heartbeat_seconds: float = 2.0,
        flush_events: int = 1_000,
        flush_seconds: float = 0.2,
        file_mode: int = FILE_MODE,
        now_ns: Callable[[], int] = time.time_ns,
        mono_ns: Callable[[], int] = time.monotonic_ns,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        limits = {
            "roll_events": roll_events,
            "roll_seconds": roll_seconds,
            "heartbeat_seconds": heartbeat_seconds,
            "flush_events": flush_events,
            "flush_seconds": flush_seconds,
        }
        _check(mode, limits)
        self.root: Final = Path(root).absolute()
        self.writer_id: Final = secrets.randbits(63)
        """Random for each start of a process: with the sequence number it identifies an event."""
        self._is_async = mode == "async"
        self._flush_events = flush_events
        self._pause = min(flush_seconds, heartbeat_seconds) if self._is_async else heartbeat_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._sleep = sleep
        self._buffer = EventBuffer(now_ns=now_ns, mono_ns=mono_ns)
        self.record: Final = self._buffer.record  # not a method: a call less for each event
        self.record_run: Final = self._buffer.record_run
        header = LogHeader(self.writer_id, 0, cluster, group_id, client)
        self._file_mode = file_mode
        self._log = LogWriter(self.root, header, roll_events=roll_events, roll_seconds=roll_seconds, file_mode=file_mode, clock=clock)
        # Two threads: a roll takes long, and no flush waits for it.
        self._log_thread = ThreadPoolExecutor(1, "ackwise-log")
        self._roll_thread = ThreadPoolExecutor(1, "ackwise-roll")
        self._writing: Future[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  #: for everything before an event to be durable
        self._background: asyncio.Task[None] | None = None
        self._unrolled: list[Path] = []
        self._roller = Roller(self.root)
        self._can_roll = False
        self._is_open = False
        self._has_ended = False
        self._is_closed = False
        self._is_failing = False
        facts = {**(attrs or {}), "mode": mode, "marks": marks and not self._is_async, "host": socket.gethostname(), "pid": os.getpid()}
        if (boot := boot_id()) is not None:
            facts["boot_id"] = boot
        self.record(Event(EventCode.SESSION_START, attrs=_json(facts)))

    @property
    def durable(self) -> Durable:
        """How far the events are durable."""
        return Durable(self.writer_id, self._log.durable_seq - 1)

    async def open(self) -> None:
        """Make the folder and the first file, with SESSION_START in it, and start to roll what crashed writers left.

        Raises `EventLogUnavailable`, and `ConfigurationError` if the file system has no locks.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._log_thread, _make_root, self.root, self._file_mode)
        await self._make_durable()
        self._is_open = True
        self._can_roll = _can_roll()
        if self._can_roll:
            self._in_roll_thread(self._recover)
        if self._background is None:
            self._background = asyncio.create_task(self._beat(), name="ackwise journal")

    async def flush(self) -> None:
        """Return once everything recorded so far is durable; `async`: once it is on its way.

        Flushes that come while one is written share the next one. Raises `EventLogUnavailable`: nothing is
        dropped then, and the next flush tries again.
        """
        if not self._is_async:
            await self._make_durable()
            return
        behind = self._buffer.next_seq - self._log.durable_seq
        if behind > MOST_BEHIND:
            await self._make_durable()
        elif behind >= self._flush_events and self._writing is None:
            self._start_writing()

    def mark(self) -> None:
        """Write everything recorded so far to the log, without waiting for the disk: a killed process leaves it behind.

        Only a host that loses its page cache loses it. It takes microseconds and happens in the event loop: a thread would cost more
        than the write, and handlers wait for it. `async` has no marks. Raises `EventLogUnavailable`: nothing is dropped then, and the
        next flush tries again.
        """
        if not self._is_async:
            self._seal()
            self._log.mark()

    async def close(self) -> None:
        """Write SESSION_END, make everything durable, roll the last file and let go of it. Closing twice does nothing.

        It waits 30 s at most for files to be rolled; then they stay logs, and the next worker on the folder rolls them.

        Raises `EventLogUnavailable`; the journal is still open then, and closing it again tries again.
        """
        if self._is_closed:
            return
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])
        try:
            if self._is_open:
                await self._end()
        finally:  # whoever gives up closing leaves no process behind
            self._in_roll_thread(self._roller.close)
        self._is_closed = True
        self._log_thread.shutdown(wait=False)
        rolled = asyncio.ensure_future(asyncio.to_thread(self._roll_thread.shutdown))
        if not (await asyncio.wait([rolled], timeout=_LONGEST_CLOSE))[0]:
            log.warning("rolling event logs took too long", folder=str(self.root), seconds=_LONGEST_CLOSE, to_do=_TO_ROLL)
            self._roller.give_up()
        await rolled

    async def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.record(Event(EventCode.SESSION_END, range_end=self._buffer.next_seq + 1))
        await self._make_durable()
        await asyncio.get_running_loop().run_in_executor(self._log_thread, self._log.finish)
        self._roll_finished()

    async def _make_durable(self) -> None:
        goal = self._buffer.next_seq
        if self._log.durable_seq >= goal:
            return
        if self._writing is None:
            self._start_writing()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((goal, waiter))
        await waiter

    # A future of the thread and no task: a loop that shuts down cancels every task, and nobody may cancel a write.
    def _start_writing(self) -> None:
        self._seal()
        loop = asyncio.get_running_loop()

        def tell(writing: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._written, writing)

        try:
            self._writing = self._log_thread.submit(self._log.write)
        except RuntimeError as error:  # no thread can be started, or the interpreter ends
            raise EventLogUnavailable(f"event log {self.root}: no thread can write it: {error}") from error
        self._writing.add_done_callback(tell)

    def _seal(self) -> None:
        if self._is_closed:
            raise EventLogUnavailable(f"event log {self.root}: it is closed; record nothing after close()")
        for block in self._buffer.seal():
            self._log.put(block)

    def _written(self, writing: Future[None]) -> None:
        self._writing, error = None, writing.exception()
        # First of all: nothing that fails here may keep a flush waiting.
        self._waiting = [(goal, waiter) for goal, waiter in self._waiting if not self._tell(goal, waiter, error)]
        if self._waiting:  # for what was recorded since this write began
            try:
                self._start_writing()
            except EventLogUnavailable as failed:
                for _, waiter in self._waiting:
                    waiter.set_exception(failed)
        if error is not None:
            if not self._is_failing:
                log.warning("the event log can't be written, none of its events is dropped", folder=str(self.root), error=said(error))
        elif self._is_failing:
            log.warning("the event log is written again, nothing is missing", folder=str(self.root))
        self._is_failing = error is not None
        self._roll_finished()

    def _tell(self, goal: int, waiter: asyncio.Future[None], error: BaseException | None) -> bool:
        """Return whether `waiter` waits no longer."""
        if not waiter.done():
            if error is not None:
                waiter.set_exception(error)
            elif goal <= self._log.durable_seq:
                waiter.set_result(None)
        return waiter.done()

    async def _beat(self) -> None:
        due = self._clock() + self._heartbeat_seconds
        while True:
            await self._sleep(self._pause)
            if self._clock() > due - self._pause / 2:
                due = self._clock() + self._heartbeat_seconds
                self.record(Event(EventCode.HEARTBEAT))
            with contextlib.suppress(EventLogUnavailable):  # `_written` has said so, and the next round tries again
                await self._make_durable()

    def _roll_finished(self) -> None:
        finished = self._log.take_finished()
        if finished and self._can_roll:
            self._in_roll_thread(lambda: self._roll(finished))

    def _in_roll_thread(self, work: Callable[[], None]) -> None:
        self._roll_thread.submit(work).add_done_callback(_report_error)

    def _roll(self, finished: list[Path]) -> None:
        self._unrolled += finished  # kept if the roller can't be started
        recovery = self._roller.roll(self._unrolled)
        self._unrolled = recovery.live
        _report_unreadable(recovery)

    def _recover(self) -> None:
        if has_left(self.root):  # else no process is started
            _report_unreadable(self._roller.roll(None))


def from_url(
    url: str | os.PathLike[str],
    *,
    group: str,
    cluster: str | None = None,
    client: str | None = None,
    attrs: Mapping[str, object] | None = None,
    mode: Mode = "before_settle",
    marks: bool = False,
    file_mode: int = FILE_MODE,
) -> Journal:
    """The journal in a folder: `/var/lib/billing/events`, or the same as a `file://` URL. Raises `ConfigurationError`."""
    options: dict[str, Any] = {"attrs": attrs, "mode": mode, "marks": marks, "file_mode": file_mode}
    return Journal(root_of(url), group_id=group, cluster=cluster, client=client, **options)


def root_of(url: str | os.PathLike[str]) -> Path:
    """The folder that `from_url` means. Raises `ConfigurationError`."""
    path = os.fspath(url)
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        raise ConfigurationError(f"events can't be written to {scheme}://; give a folder or a file:// URL")
    if separator:
        path = unquote(rest.removeprefix("localhost"))
        if not path.startswith("/"):
            raise ConfigurationError(f"file://{rest} names no folder on this machine; write file:///absolute/folder, or the folder alone")
    if not path:
        raise ConfigurationError("the folder of the events has no name; give a folder or a file:// URL")
    return Path(path).absolute()


def _check(mode: str, limits: Mapping[str, float]) -> None:
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode of the event journal is {mode!r}; it is 'before_settle' or 'async'")
    for name, value in limits.items():
        if not value > 0:
            raise ConfigurationError(f"{name} of the event journal is {value}; it must be above zero")


def _json(facts: Mapping[str, object]) -> str:
    try:
        return json.dumps(facts, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"attrs of the event journal can't be written as JSON ({error}); give plain values") from error


def _make_root(root: Path, file_mode: int) -> None:
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        make_directory(root, file_mode)
        sync_directory(root.parent)
    except OSError as error:
        raise EventLogUnavailable(explain(error, root)) from error


def _can_roll() -> bool:
    if (missing := missing_package()) is not None:
        log.warning(
            "events stay in log files, which `ackwise reconcile` rolls; pip install 'ackwise[events]' to roll them here", error=missing
        )
    return missing is None


def _report_error(rolled: Future[None]) -> None:
    error = rolled.exception()
    if error is not None:
        log.error("event log files could not be rolled, they stay and `ackwise reconcile` rolls them", error=said(error))
        log.debug("what kept event log files from being rolled", raised=error)


def _report_unreadable(recovery: Recovery) -> None:
    for unread in recovery.unreadable:
        log.warning(
            "an event log can't be read to its end, what its writer did after that is unknown",
            file=str(unread.path),
            why=unread.reason,
            from_event=unread.from_seq,
        )
