"""`MiddlewareCall`: one call of the batch middleware, around the calls of a handler of single messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import takewhile

from ackwise.middleware.disposition import Done, Duplicate
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.handout import Handout
from ackwise.middleware.publishing import Publications
from ackwise.middleware.run import Run, Stage
from ackwise.middleware.usercode import Called, Raised, Returned

__all__ = ["MiddlewareCall"]


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
        """Until no call of the handler runs. Where the middleware gives up before that, `cut` ends them; their end is waited for."""
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
        """Nothing more is given to the handler."""
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
        """What was given to `call_next` and did not start."""
        given = (self.runs[place] for place in sorted(self.handout.given) if self._is_open(place))
        return [run for run in given if not run.began]

    def _is_open(self, place: int) -> bool:
        return self.runs[place].stage is Stage.ADMITTED

    def publications_of(self, run: Run, own: Publications | None) -> Publications | None:
        """What is published for `run`: by the middleware, and then by its handler."""
        if not (before := (self.publications or {}).get(run.first)):
            return own
        return {run.first: [*before, *(own or {}).get(run.first, ())]}
