"""Watching relays: the pages of a process that has no handlers, `ackwise relay` and `ackwise cdc`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp.web import Request

from ackwise.middleware.watch import Watch
from ackwise.plugin.group.relaycounts import RelayCounts
from ackwise.plugin.inspect.outboxstate import OutboxState, look_at_outbox
from ackwise.plugin.pages.render import Answer
from ackwise.plugin.watch.measures import Sample, measures_of_relays
from ackwise.plugin.watch.server import Turns, exposed

__all__ = ["RelayWatch"]

#: Seconds between two looks at the database of the outbox, and between two while there is none to look at yet.
_LOOK_EVERY, _LOOK_AGAIN = 10.0, 0.5

_INDEX: Final = b"/live     the event loop turns\n/metrics  for Prometheus\n"


class RelayWatch:
    """The pages of the relays of one process. `name` stands in the place of the group; `more` is what else is measured."""

    def __init__(self, policy: Watch, name: str, counts: RelayCounts, more: Callable[[], Iterable[Sample]] = tuple) -> None:
        self._policy = policy
        self._name = name
        self._counts = counts
        self._more = more
        self._outbox: OutboxState | None = None
        self._turns = Turns()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """With the pages served. Raises `ConfigurationError` if they can't be."""
        pages = {"/": _index, "/live": self._turns.live, "/metrics": self._metrics}
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


async def _index(request: Request) -> Answer:
    return Answer(_INDEX)
