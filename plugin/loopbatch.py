"""`LoopBatch`: a batch in a loop of the user's own, and the hand-over between pipeline and loop."""

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
    """A batch in a loop of the user's own, which says what becomes of it in one of two ways, once.

    `async with batch:` around the work: a clean end is success, rulings and `ack_index` count as in a handler. An
    `Exception` in the body is a failure of the batch, as if a handler had raised it; it ends there, and the loop goes on.
    `await batch.run(handler)` calls `async def handler(batch)` and does with it what an agent does.

    A batch with neither is undecided: it is not committed and comes up again.
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
        """Whether its fate is decided; also when Ackwise gave it up, since its partition or claims went to another worker."""
        return self._decided.done()

    @property
    def is_cut_off(self) -> bool:
        """Whether its partition is no longer ours: nothing of it may start."""
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
        """Call `handler` with this batch; what it returns or raises is what becomes of the batch.

        The batch counts as taken from this call on, so the coroutine may be given to a task. Raises `InvalidRuling` if
        it was taken before, and what stops a program; any other exception of the handler is a failure of the batch.
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
        """Wait for what the loop decides: returns what it returned, raises what it raised, or `Undecided`."""
        match await self._decided:
            case Returned(value):
                return value
            case Raised(error):
                raise error

    def leave_undecided(self, *, unless_opened: bool = False) -> bool:
        """Close it for decisions; return whether it was undecided."""
        if self.is_over or (unless_opened and self._opened):
            return False
        self._decide(Raised(Undecided("its loop left it undecided")))
        return True

    def take_back(self) -> None:
        """Its partition is gone or paused: a loop that has not seen it does not get it."""
        if not self.is_taken:
            self.leave_undecided()

    def _open(self) -> None:
        if self._opened:
            raise InvalidRuling(f"{self!r} was taken before; use `async with batch:` or `await batch.run(handler)`, once")
        self._opened = True

    def _decide(self, outcome: Returned[Any] | Raised) -> None:
        if not self._decided.done():  # else it was called off meanwhile, and what the loop did comes too late
            self._decided.set_result(outcome)


def _is_about_the_loop(error: BaseException) -> bool:
    """Whether `error`, or one in the group that it is, ends the loop from outside: nothing was decided then."""
    return any(is_a(leaf, asyncio.CancelledError, GeneratorExit) for leaf in leaves(error))


class _HandlerWork(Coroutine[Any, Any, None]):
    """The call of a handler with `batch`. A coroutine that is ended before it started, as a task cancelled at once does, is not told."""

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
    """The batches that wait for a loop. As a handler it waits until the loop has decided.

    `slots`: one for each loop that has asked for a batch. Nothing is claimed that none of them could take.
    """

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(0)
        self._loops = 0  #: that were in here at a time
        self._asking = 0
        self._waiting: asyncio.Queue[LoopBatch[Any] | None] = asyncio.Queue()
        self._taken: set[LoopBatch[Any]] = set()
        self._is_closed = False
        self.stopped_by: BaseException | None = None  #: what stops a program, if a body raised that

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
        """The next batch that is still open; `None` once everything has ended."""
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
        self._waiting.put_nowait(None)  # for the loops beside this one
        return None

    def close(self) -> None:
        """Hand out nothing more. What was not opened by now is undecided; what is open may still be decided."""
        self._is_closed = True
        for batch in [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]:
            if batch is None:
                self._waiting.put_nowait(None)  # for loops that are still in a body
            else:
                batch.leave_undecided()

    def abandon(self) -> None:
        """The loop is gone: what it took and never opened is undecided as well."""
        self.close()
        for batch in list(self._taken):
            batch.leave_undecided(unless_opened=True)

    def end(self) -> None:
        """Nothing will be offered any more: waiters are woken."""
        self._waiting.put_nowait(None)
