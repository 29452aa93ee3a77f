"""The pages of `Watch`: `Watching` for a worker, `RelayWatch` for a process without handlers (`ackwise relay`, `ackwise cdc`).

The pages are served from another thread. They read the worker in its event loop, in bounded time; while that loop is blocked, the
pages report it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp.web import Request

from ackwise.middleware.events import EventSink
from ackwise.middleware.policies.policies import Watch
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.workerstate import RelayCounts
from ackwise.plugin.operate.explanation import Explanation
from ackwise.plugin.operate.state import OutboxState, State, look, look_at_outbox
from ackwise.plugin.web.pages import HTML, Answer
from ackwise.plugin.web.pageserver import Page
from ackwise.plugin.web.statepage import state_page
from ackwise.plugin.web.workermeasures import CountedEvents, Counts, Sample, Seen, TimedStore, keep_looking, measures, measures_of_relays
from ackwise.plugin.web.workerserver import Turns, exposed

#: Seconds between two reads of the outbox, and between two attempts while it is not open yet.
_LOOK_EVERY, _LOOK_AGAIN = 10.0, 0.5

_RELAY_INDEX: Final = b"/live     the event loop turns\n/metrics  for Prometheus\n"
_WORKER_INDEX: Final = (
    b"/live     the event loop turns\n/ready    joined, and the store answers\n/metrics  for Prometheus\n/ackwise/ the state\n"
)


def _index(text: bytes) -> Page:
    async def answer(request: Request) -> Answer:
        return Answer(text)

    return answer


class RelayWatch:
    """The pages of the relays of one process. `name` is used as the group; `more` returns further samples."""

    def __init__(self, policy: Watch, name: str, counts: RelayCounts, more: Callable[[], Iterable[Sample]] = tuple) -> None:
        self._policy = policy
        self._name = name
        self._counts = counts
        self._more = more
        self._outbox: OutboxState | None = None
        self._turns = Turns()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Serve the pages during the block. Raises `ConfigurationError` if they can't be served."""
        pages = {"/": _index(_RELAY_INDEX), "/live": self._turns.live, "/metrics": self._metrics}
        async with self._turns.served(self._policy, self._name, pages):
            looking = asyncio.create_task(self._look(), name="ackwise look")
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.wait({looking})

    async def _look(self) -> None:
        while True:
            self._outbox = await look_at_outbox(self._counts)
            await asyncio.sleep(_LOOK_AGAIN if self._outbox is None else _LOOK_EVERY)

    async def _metrics(self, request: Request) -> Answer:  # in the thread of the server
        samples = await self._turns.ask(self._measured()) or ()
        turned = Sample("ackwise_loop_turned_seconds", (), self._turns.still_for)
        return exposed(request, self._name, [turned, *samples])

    async def _measured(self) -> list[Sample]:
        return [*measures_of_relays(self._counts, self._outbox), *self._more()]


class Watching:
    """The pages of one worker, as configured by `policy`. `explained` returns the output of `ackwise explain`."""

    def __init__(self, policy: Watch, explained: Callable[[], Explanation]) -> None:
        self._policy = policy
        self._explain = explained
        self._explained: Explanation | None = None
        self._counts = Counts()
        self._seen = Seen()
        self._turns = Turns()
        self._member: Member
        self._looking: asyncio.Task[State] | None = None

    def counted(self, sink: EventSink | None) -> EventSink:
        """Return a sink that counts events and passes them on to `sink`, if any."""
        return CountedEvents(self._counts, sink)

    def timed(self, store: ClaimStore | None) -> ClaimStore | None:
        """Return `store` with timed exchanges; `None` without one."""
        return None if store is None else TimedStore(self._counts, store)

    @asynccontextmanager
    async def opened(self, member: Member) -> AsyncIterator[None]:
        """Serve the pages of `member`, which need not be open yet. Raises `ConfigurationError` if they can't be served."""
        self._member = member
        async with self._turns.served(self._policy, member.settings.group, self._pages()):
            yield

    def begin(self) -> None:
        """Start to ask broker and database for metrics that the worker does not have."""
        self._member.keep(lambda: keep_looking(self._member, self._seen), "watch")

    def _pages(self) -> dict[str, Page]:
        index = _index(_WORKER_INDEX)
        return {"/": index, "/live": self._turns.live, "/ready": self._ready, "/metrics": self._metrics, "/ackwise/": self._state}

    # These run in the thread of the server.

    async def _ready(self, request: Request) -> Answer:
        if (why := self._why_not_ready()) is None:
            return Answer(b"ready\n")
        return Answer(f"not ready: {why}\n".encode(), status=503)

    def _why_not_ready(self) -> str | None:
        member = self._member
        if member.stop.is_set():
            return "the worker stops"
        if not member.has_joined.is_set():
            return "the worker has not joined its group yet"
        if (leases := getattr(member, "leases", None)) is not None and leases.has_failed:
            return "the store did not answer the last request"
        if member.delay_counts.is_halted:
            return "cancellations can't be read, and no waiting copy is delivered until they can"
        return None

    async def _metrics(self, request: Request) -> Answer:
        samples = await self._turns.ask(self._measure())
        return exposed(request, self._member.settings.group, [*self._of_the_loop(), *(samples or ())])

    def _of_the_loop(self) -> Iterator[Sample]:
        yield Sample("ackwise_ready", (), self._why_not_ready() is None)
        yield Sample("ackwise_loop_turned_seconds", (), self._turns.still_for)

    async def _state(self, request: Request) -> Answer:
        if (state := await self._turns.ask(self._look())) is None:
            return Answer(b"the worker is not open yet, or its event loop does not turn; /live and /ready say which\n", status=503)
        if "text/html" in request.headers.get("Accept", ""):
            return Answer(state_page(state).encode("utf-8", "replace"), HTML)
        return Answer(json.dumps(dataclasses.asdict(state)).encode(), "application/json")

    # These run in the loop of the worker.

    async def _measure(self) -> list[Sample]:
        return [*measures(self._member, self._counts, self._seen, time.monotonic())] if self._is_open else []

    @property
    def _is_open(self) -> bool:
        return hasattr(self._member, "routes")

    async def _look(self) -> State | None:
        """Return the state; concurrent callers share one result."""
        if not self._is_open:
            return None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_now(), name="ackwise look")
        return await asyncio.shield(self._looking)

    async def _look_now(self) -> State:
        member = self._member
        self._explained = explained = self._explained or self._explain()
        ends, outbox = await asyncio.gather(member.ends(), look_at_outbox(member))
        return look(member, ends, chain=explained.chain, settings=explained.settings, outbox=outbox)
