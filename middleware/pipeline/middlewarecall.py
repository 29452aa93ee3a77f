"""`MiddlewareCall`: one call of a batch middleware around the handler of single messages. `Handout`: its messages and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from itertools import takewhile
from typing import Any, Final

from ackwise.middleware.errors import InvalidHandlerResult, InvalidRuling
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, DONE, ConsumeStatus, Disposition, Done, Duplicate
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.publishing import Publications
from ackwise.middleware.pipeline.rulings import dispositions_of
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.usercode import Called, Raised, Returned

_PARTLY: Final = "a middleware gave call_next a part of its batch and returned no status; return CONSUME_SUCCESS to leave out the handler"


class Handout:
    """The messages of one call of a batch middleware, by their places in its batch.

    A success of the handler stands. A failure stands unless the middleware rules otherwise before it ends.
    """

    __slots__ = ("_handler", "_is_busy", "_shown", "batch", "failed", "given", "is_over")

    def __init__(self, messages: Sequence[Message[Any]], handler: str) -> None:
        self.batch = Batch(messages)
        self.failed: dict[int, Returned[Any] | Raised] = {}  #: what the handler failed with
        self.given: set[int] = set()  #: what the handler has had
        self.is_over = False  #: the middleware has ended
        self._handler = handler
        self._shown: dict[int, Disposition] = {}  #: what the batch says of them by itself
        self._is_busy = False

    @contextmanager
    def handling(self, given: Batch[Any]) -> Iterator[list[int]]:
        """With the places of those of `given` that are to be handled, which are neither done nor ruled on by the middleware.

        Their results are rulings of the batch afterwards. Raises `InvalidRuling` for what is not in the batch, and where it is too late.
        """
        if self.is_over or self._is_busy:
            raise InvalidRuling("call_next was called beside another call, or after its middleware had ended; wait for one after the other")
        places = [place for place in self._places(given) if not self.is_overruled(place) and self.batch.ruling(place) is not DONE]
        self.given.update(places)
        self._is_busy = True
        try:
            yield places
        finally:
            self._is_busy = False
            for place in self.failed.keys() & places:
                self._show(place, dispositions_of(self.alone(place), self.failed[place], handler=self._handler)[0])

    def status(self, given: Batch[Any]) -> ConsumeStatus | None:
        """Return the status for `call_next`: `None` if all of `given` are done."""
        return None if all(self.batch.ruling(place) is DONE for place in self._places(given)) else CONSUME_LATER

    def succeed(self, place: int) -> None:
        """The handler has succeeded, or need not run."""
        self.failed.pop(place, None)
        self._show(place, DONE)

    def forget(self, places: Sequence[int]) -> None:
        """The middleware did not wait for the handler: a message without a result takes that of the middleware."""
        self.given.difference_update(place for place in places if place not in self.failed and self._shown.get(place) is not DONE)

    def is_overruled(self, place: int) -> bool:
        """Return whether the middleware ruled on the message itself."""
        return self.batch.ruling(place) is not self._shown.get(place)

    def alone(self, place: int) -> Batch[Any]:
        """The message in its own batch, which comes later as the batch says."""
        alone = Batch([self.batch[place]])
        alone.delay_level = self.batch.delay_level
        return alone

    def result_of_rest(self, result: Called | None) -> Called | None:
        """What `result` of the middleware means for what the handler has not had: that nothing was said is no success."""
        says_nothing = isinstance(result, Returned) and result.value is None and not self.batch.ack_index_was_set
        return Raised(InvalidHandlerResult(_PARTLY)) if says_nothing and self.given else result

    def _places(self, given: Batch[Any]) -> list[int]:
        return sorted({self.batch.position(message) for message in given})

    def _show(self, place: int, disposition: Disposition) -> None:
        if disposition is DONE or not self.is_overruled(place):
            self.batch.show(place, disposition)
            self._shown[place] = disposition


class MiddlewareCall(HandlerCall):
    """The middleware around `runs`, messages of one batch that `whole` handles. What handles them are other parts of `whole`, or itself."""

    __slots__ = ("_over", "_places", "context", "handout", "is_cut", "result", "runs", "waiting")

    def __init__(self, whole: HandlerCall, runs: Sequence[Run], handler: str) -> None:
        super().__init__(whole.transaction)
        self.whole = whole
        whole.parts.append(self)
        self.runs = runs
        self.waiting = [*runs]  #: what the middleware has not given to `call_next`
        self.handout = Handout([run.message for run in runs], handler)
        self.given = self.handout.given
        self.context: Context | None = None  #: of `call_next`, which the handler gets a copy of
        self.is_cut = False  #: the middleware does not wait for the handler any more
        self.result: Called | None = None  #: `None`: it was called off, or did not decide
        self._over: asyncio.Future[None] | None = None  #: `call_next` waits for the handler
        self._places = {run: place for place, run in enumerate(runs)}

    def take(self, places: Sequence[int], *, in_order: bool) -> list[Run]:
        """Those at `places` which may run now; `in_order` nothing that waits in front of them may be left out."""
        wanted = {self.runs[place] for place in places}
        self.waiting = [run for run in self.waiting if run not in wanted]
        if in_order:
            return [*takewhile(wanted.__contains__, (run for run in self.runs if run.stage is Stage.ADMITTED))]
        return [run for run in self.runs if run in wanted and run.stage is Stage.ADMITTED]

    def fail(self, run: Run, result: Returned[object] | Raised) -> None:
        """The handler failed with `result`; it is decided once the middleware has ended."""
        self.handout.failed[self._places[run]] = result
        run.call = self

    def run_again(self, run: Run) -> Returned[object] | Raised | None:
        """The handler has `run` once more; returns what it failed with before."""
        return self.handout.failed.pop(self._places[run], None)

    async def wait_until_handled(self, cut: Callable[[], None]) -> None:
        """Wait until no call of the handler runs. Where the middleware gives up before that, `cut` ends them; their end is waited for."""
        self._over = over = asyncio.get_running_loop().create_future()
        cancelled: asyncio.CancelledError | None = None
        while not over.done():
            try:
                await asyncio.wait({over})
            except asyncio.CancelledError as error:
                cancelled = error
                if not (self.called_off or self.is_cut):
                    self.is_cut = True
                    cut()
        if cancelled is not None:
            raise cancelled

    def look(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Let `call_next` go on if none of `running` calls the handler."""
        if self._over is not None and not self._over.done() and all(task is self.task for task in running):
            self._over.set_result(None)

    def note(self, places: Sequence[int]) -> None:
        """See what became of those at `places`, which `call_next` was given."""
        for place in places:
            run = self.runs[place]
            if run.stage >= Stage.RULED and isinstance(run.disposition, Done | Duplicate):
                self.handout.succeed(place)
        if self.is_cut:
            self.handout.forget(places)
            self.is_cut = False

    def end(self) -> None:
        """Give nothing more to the handler."""
        self.handout.is_over = True
        self.waiting.clear()
        self.look(())

    def failures(self) -> list[tuple[int, Run, Returned[object] | Raised]]:
        """What the handler failed with, and is not decided."""
        return [(place, self.runs[place], self.handout.failed[place]) for place in sorted(self.handout.failed) if self._is_open(place)]

    def rest(self) -> list[int]:
        """The places of what the handler has not had."""
        return [place for place in range(len(self.runs)) if self._is_open(place) and place not in self.handout.given]

    def left_unstarted(self) -> list[Run]:
        """Return the runs that were given to `call_next` and did not start."""
        given = (self.runs[place] for place in sorted(self.handout.given) if self._is_open(place))
        return [run for run in given if not run.began]

    def _is_open(self, place: int) -> bool:
        return self.runs[place].stage is Stage.ADMITTED

    def publications_of(self, run: Run, own: Publications | None) -> Publications | None:
        """Return the messages published for `run`: by the middleware, then by its handler."""
        if not (before := (self.publications or {}).get(run.first)):
            return own
        return {run.first: [*before, *(own or {}).get(run.first, ())]}
