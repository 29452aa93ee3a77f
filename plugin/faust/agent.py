"""`Agent`: Faust's, restarted in place when it raises, after what was out of its streams has been ruled on.

Left to Faust's supervisor, the stream of a crashed actor goes to a successor while the abandoned one, finalised later,
stops it; and an agent rests for seconds, or ends its worker after a few failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, cast

import faust
from faust.types import TP

from ackwise.middleware.agent import Agent as Handler
from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log, said
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.raising import Later, Reject
from ackwise.middleware.tracebacks import where_raised
from ackwise.middleware.usercode import Returned, Stops, awaited, class_name, is_a
from ackwise.plugin.faust.internals import FaustAgent, chain_of
from ackwise.plugin.faust.stream import Stream

__all__ = ["Agent", "Feeder"]

log = Log()

#: Rest of an agent that raises before it takes a message: seconds at first, doubling up to the second.
_FIRST_REST: Final = 0.5
_LONGEST_REST: Final = 10.0


class Feeder(Protocol):
    """What feeds the streams of agents."""

    def attach(self, stream: Stream, agent: faust.Agent) -> None:
        """Feed `stream`, if it reads a topic."""


class Agent(FaustAgent):
    """What `@app.agent` makes once Ackwise is used."""

    handler: Handler | None = None  #: the handler function that its loop calls, if it was declared with one

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """As Faust's, fed by Ackwise where its channel is a topic."""
        stream = super().stream(*args, **kwargs)
        feeder: Feeder = cast(Any, self.app).ackwise
        feeder.attach(cast(Stream, stream), self)
        return stream

    async def on_isolated_partitions_revoked(self, revoked: set[TP]) -> None:
        """As Faust's; and what the actors of these partitions read is read no more, before the next assignment is looked at."""
        for tp in revoked:
            if (aref := self.actor_of(tp)) is not None:
                for stream in _chain(cast(Stream, aref.stream)):
                    stream.retire()
        await super().on_isolated_partitions_revoked(revoked)

    async def run_actor(self, coro: Awaitable[Any], aref: Any) -> None:
        """Run the agent, and run it again after whatever it raised, for as long as its actor lives."""
        root = cast(Stream, aref.stream)
        if root.inlet is None:
            return await super().run_actor(coro, aref)
        self.become_current()
        rest = 0.0
        while True:
            task, found = in_a_task(_same, coro)  # what cancels the actor is told from what the agent leaves behind
            is_cancelled = await ended(task)
            outcome = outcome_of(found)
            if isinstance(outcome, Returned):
                await self._leave(root, partial(Stream.end, task=task))
                if not (self.app.should_stop or aref.should_stop):
                    log.error("an agent has returned, and nobody takes its messages until the worker is started again", handler=self.name)
                return None
            error = outcome.error
            if isinstance(outcome, Stops):
                told = [stream.halt(error) for stream in _chain(root)]
                await self._leave(root, Stream.forsake)
                if not any(told):
                    raise error
                return None
            if not is_a(error, asyncio.CancelledError):
                await self._call_on_error(error)
            elif is_cancelled:
                await self._leave(root, Stream.forsake)
                if self.should_stop or aref.should_stop:
                    raise error
                return await self._give_way(aref, error)
            rest = await self._fail(root, error, rest)
            coro = self._begin_again(aref, root)

    async def _fail(self, root: Stream, error: BaseException, rest: float) -> float:
        """What was out of its streams has failed. Where nothing was, it rests for longer than `rest`; returns for how long."""
        if sum(stream.fail(error) for stream in _chain(root)):
            return 0.0
        rest = min(_LONGEST_REST, rest * 2 or _FIRST_REST)
        log.error(
            "an agent raises before it takes a message, it is begun again",
            handler=self.name,
            error=said(error) if is_a(error, AckwiseError) else class_name(error),
            at=where_raised(error),
            retry_in=rest,
        )
        await asyncio.sleep(rest)
        return rest

    def _begin_again(self, aref: Any, root: Stream) -> Awaitable[Any]:
        root.restore()
        aref.it = self.fun(root)
        return self.begun(aref)

    async def _call_on_error(self, error: BaseException) -> None:
        if self.error_handler is None or is_a(error, Later, Reject):
            return
        outcome = await awaited(self.error_handler, self, error)
        if not isinstance(outcome, Returned):
            log.error(
                "on_error of an agent raised, its messages have failed all the same",
                handler=self.name,
                error=class_name(outcome.error),
                at=where_raised(outcome.error),
            )

    async def _give_way(self, aref: Any, error: BaseException) -> None:
        """As Faust: the supervisor begins it anew."""
        await aref.crash(error)
        self.supervisor.wakeup()

    async def _leave(self, root: Stream, part: Callable[[Stream], None]) -> None:
        """The actor ends: its streams do too, ready for one that would take them over."""
        streams = _chain(root)
        for stream in streams:
            part(stream)
        await root.stop()
        for stream in streams:
            stream.service_reset()


def _same(awaitable: Awaitable[Any]) -> Awaitable[Any]:
    return awaitable


def _chain(root: Stream) -> list[Stream]:
    return cast("list[Stream]", chain_of(root))
