"""`LoopBatch`: a batch in the user's loop, and `Handover`, which passes it from the pipeline to the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ackwise.middleware.errors import InvalidRuling
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import ConsumeStatus
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.settlement import Undecided, current_assignment
from ackwise.middleware.usercode import Raised, Returned, is_a, leaves, stops

T_co = TypeVar("T_co", covariant=True)


class LoopBatch(Batch[T_co]):
    """A batch in the user's loop, which decides it once, in one of two ways.

    `async with batch:` around the work: a clean end is success; rulings and `ack_index` count as in a handler. An `Exception` in the
    body is a failure of the batch, as if a handler had raised it; it is not propagated, and the loop goes on.
    `await batch.run(handler)` calls `async def handler(batch)` as an agent does.

    Without either the batch is undecided: it is not committed, and is given out again.
    """

    __slots__ = ("_assignment", "_decided", "_opened", "is_taken")

    def __init__(self, messages: Sequence[Message[T_co]]) -> None:
        super().__init__(messages)
        self._opened = False
        self.is_taken = False  #: a loop has it
        self._assignment = current_assignment.get()
        self._decided: asyncio.Future[Returned[Any] | Raised] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Return True once it is decided, or given up because its partition or claims went to another worker."""
        return self._decided.done()

    @property
    def is_cut_off(self) -> bool:
        """Return True if its partition went to another worker: none of its messages may start."""
        return self._assignment is not None and self._assignment.cut_off

    async def __aenter__(self) -> LoopBatch[T_co]:
        self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is None:
            self._decide(Returned(None))
        elif _is_about_the_loop(error):
            self.leave_undecided()
        else:
            self._decide(Raised(error))
        return error is not None and is_a(error, Exception)

    def run(self, handler: Callable[[Batch[T_co]], Awaitable[ConsumeStatus | None]]) -> Coroutine[Any, Any, None]:
        """Call `handler` with this batch; its result or exception decides the batch.

        The batch counts as taken from this call on, so the coroutine may be given to a task. Raises `InvalidRuling` if it was taken
        before, and exceptions that stop a program; any other exception of the handler is a failure of the batch.
        """
        self._open()
        return _HandlerWork(self, self._run(handler))

    async def _run(self, handler: Callable[[Batch[T_co]], Awaitable[ConsumeStatus | None]]) -> None:
        try:
            result = await handler(self)
        except Exception as error:  # noqa: BLE001  # user code: whatever it raises is a ruling
            self._decide(Raised(error))
        except BaseException as error:
            if _is_about_the_loop(error):
                self.leave_undecided()
            else:
                self._decide(Raised(error))
            raise
        else:
            self._decide(Returned(result))

    async def decision(self) -> object:
        """Wait for the loop. Return its result, raise its exception, or raise `Undecided`."""
        match await self._decided:
            case Returned(value):
                return value
            case Raised(error):
                raise error

    def leave_undecided(self, *, unless_opened: bool = False) -> bool:
        """Accept no more decisions. Return True if it was undecided."""
        if self.is_over or (unless_opened and self._opened):
            return False
        self._decide(Raised(Undecided("its loop left it undecided")))
        return True

    def take_back(self) -> None:
        """Withhold it from the loop, unless that has it already: its partition is gone or paused."""
        if not self.is_taken:
            self.leave_undecided()

    def _open(self) -> None:
        if self._opened:
            raise InvalidRuling(f"{self!r} was taken before; use `async with batch:` or `await batch.run(handler)`, once")
        self._opened = True

    def _decide(self, outcome: Returned[Any] | Raised) -> None:
        if not self._decided.done():  # otherwise it was called off before
            self._decided.set_result(outcome)


def _is_about_the_loop(error: BaseException) -> bool:
    """Return True if `error`, or one in its group, ends the loop from outside: then nothing is decided."""
    return any(is_a(leaf, asyncio.CancelledError, GeneratorExit) for leaf in leaves(error))


class _HandlerWork(Coroutine[Any, Any, None]):
    """The call of a handler with `batch`. It notices its end before its start, as in a task that is cancelled at once."""

    def __init__(self, batch: LoopBatch[Any], work: Coroutine[Any, Any, None]) -> None:
        self._batch = batch
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        yield from self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._work.throw(*error)
        except BaseException:
            self._batch.leave_undecided()
            raise

    def close(self) -> None:
        self._work.close()
        self._batch.leave_undecided()

    def __del__(self) -> None:
        self._batch.leave_undecided()


class Handover:
    """The batches that wait for a loop. For the pipeline it is a handler: it waits until the loop has decided.

    `slots`: one for each loop that has asked for a batch, so that no message is claimed without a taker.
    """

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(0)
        self._loops = 0  #: the most loops that asked at a time
        self._asking = 0
        self._waiting: asyncio.Queue[LoopBatch[Any] | None] = asyncio.Queue()
        self._taken: set[LoopBatch[Any]] = set()
        self._is_closed = False
        self.stopped_by: BaseException | None = None  #: the exception that stops the program, if a body raised one

    async def __call__(self, batch: Any) -> object:
        """Offer `batch`, a `LoopBatch`, and wait for its fate."""
        if self._is_closed:
            raise Undecided("no loop takes it any more")
        self._waiting.put_nowait(batch)
        try:
            return await batch.decision()
        except BaseException as error:
            if stops(error):
                self.stopped_by = error
            raise
        finally:
            self._taken.discard(batch)

    async def take(self) -> LoopBatch[Any] | None:
        """Return the next batch that is still open; `None` after the end."""
        self._asking += 1
        if self._asking + len(self._taken) > self._loops:
            self._loops += 1
            self.slots.release()
        try:
            batch = await self._next()
        finally:
            self._asking -= 1
        if batch is not None:
            batch.is_taken = True
            self._taken.add(batch)
        return batch

    async def _next(self) -> LoopBatch[Any] | None:
        while (batch := await self._waiting.get()) is not None:
            if batch.is_cut_off:
                batch.leave_undecided()
            elif not batch.is_over:
                return batch
        self._waiting.put_nowait(None)  # for the other loops
        return None

    def close(self) -> None:
        """Hand out no more batches. Batches that were not opened are undecided; open ones may still be decided."""
        self._is_closed = True
        for batch in [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]:
            if batch is None:
                self._waiting.put_nowait(None)  # for loops that are still in a body
            else:
                batch.leave_undecided()

    def abandon(self) -> None:
        """Leave the batches undecided that the loop took and never opened: it has ended."""
        self.close()
        for batch in list(self._taken):
            batch.leave_undecided(unless_opened=True)

    def end(self) -> None:
        """Wake the waiting loops: no batch will be offered any more."""
        self._waiting.put_nowait(None)
