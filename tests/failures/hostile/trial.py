"""One worker that suffers a plan: what it is given, what must have become of it, and how that is found out from outside."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError
from tests.failures.calls import Tap, current
from tests.failures.world import Member, Record, World, expected

from ackwise.middleware.errors import AckwiseError
from ackwise.testing.hostile.client import under
from ackwise.testing.hostile.plan import Plan

#: Seconds that a worker which failed a trial has to end.
_LAST_CALL = 10.0

#: Runs a worker of the world, whose calls pass the tap, until the event is set.
Join = Callable[[World, Tap, asyncio.Event], Coroutine[Any, Any, None]]


def host(world: World, tap: Tap, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    """The host on aiokafka."""
    return world.host(tap).run(stop)


def _some(name: str, world: World) -> list[Record]:
    """Three messages for each partition: one that succeeds, one that comes later once, and again one that succeeds."""
    return [
        Record.of(f"{name}{number}-{partition}", partition, "later" if number == 1 else "ok", times=1)
        for number in range(3)
        for partition in range(world.partitions)
    ]


def started(world: World, join: Join, plan: Plan) -> Member:
    """A worker that runs, and suffers `plan`."""
    tap, stop, context = Tap(world.ledger), asyncio.Event(), copy_context()
    context.run(current.set, tap)
    context.run(under.set, plan)
    running: Coroutine[Any, Any, None] = context.run(join, world, tap, stop)
    return Member(tap, asyncio.create_task(running, context=context), stop)


@dataclass
class Trial:
    """A group that worked, was stalled while more was sent, and goes on with a worker that suffers `plan`."""

    world: World
    plan: Plan
    join: Join = host
    may_end: bool = False  #: the worker may end with an error that says why, and the next one goes on
    before: Sequence[Record] = ()  #: what a worker that suffers nothing is done with
    ended: list[BaseException] = field(default_factory=list)

    async def run(self) -> None:
        """Assert that nothing is lost, nothing is committed early, and that the worker goes on afterwards."""
        world = self.world
        await world.create()
        self.before = _some("before", world)
        await world.send(self.before)
        await self._suffer(Plan())
        world.settings = {**world.settings, "start": "latest"}  # who takes this for a group that never committed loses what waits
        await world.send([*_some("waited", world), Record.of("rejected", 0, "reject"), Record(None, 1, b"\xff")])
        try:
            await self._suffer(self.plan)
        finally:
            await asyncio.gather(*(client.close() for client in self.plan.clients), return_exceptions=True)
        await self._judge()

    async def _suffer(self, plan: Plan) -> None:
        """Work until everything is committed, with what is sent once the faults have struck, and leave."""
        world, member = self.world, started(self.world, self.join, plan)
        try:
            if plan.faults:
                member = await self._meanwhile(member, plan, self._strikes(plan))
                await world.send(_some("after", world))
            member = await self._meanwhile(member, plan, world.wait_until_committed())
        except BaseException:
            member.task.cancel()
            await asyncio.wait({member.task}, timeout=_LAST_CALL)
            raise
        await self._leave(member, plan)

    async def _strikes(self, plan: Plan) -> None:
        """Until every fault has struck, or there is nothing left that it could strike."""
        waits = {asyncio.create_task(plan.wait_until_spent()), asyncio.create_task(self.world.wait_until_committed())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _meanwhile(self, member: Member, plan: Plan, waiting: Coroutine[Any, Any, None]) -> Member:
        """Work while `waiting` goes on; returns the worker that runs then."""
        wait = asyncio.create_task(waiting)
        try:
            while True:
                await asyncio.wait({member.task, wait}, return_when=asyncio.FIRST_COMPLETED)
                if wait.done():
                    await wait
                    return member
                await self._leave(member, plan)
                assert self.ended, f"{plan}: the worker ended without an error"
                member = started(self.world, self.join, plan)
        finally:
            wait.cancel()
            await asyncio.wait([wait])

    async def _leave(self, member: Member, plan: Plan) -> None:
        """Let `member` end in order. An error with which it ends must be one that says what happened, where it may end at all."""
        member.stop.set()
        await asyncio.wait({member.task}, timeout=self.world.deadline)
        assert member.task.done(), f"{plan}: the worker did not leave within {self.world.deadline:.0f} s"
        assert not member.task.cancelled(), f"{plan}: the worker ended with CancelledError, which says nothing"
        if (error := member.task.exception()) is not None:
            assert self.may_end, f"{plan} ended the worker with {error!r}"
            assert isinstance(error, AckwiseError | KafkaError), f"{plan} ended the worker with {error!r}, which says nothing"
            self.ended.append(error)

    async def _judge(self) -> None:
        world = self.world
        written = await world.judge()
        must_run, must_be_dead = expected(world.sent)
        ran = world.ledger.runs()
        assert set(ran) == must_run, f"lost {sorted(must_run - set(map(str, ran)))}"
        assert {letter.id for letter in await world.dead_letters()} == must_be_dead
        if not self.ended:
            assert set(ran.values()) == {1}, f"ran twice in one process: {[id for id, times in ran.items() if times > 1]}"
        done = {record.id for record in self.before}
        copies = [copy for (topic, _), there in written.items() if topic == f"{world.group}.retry" for copy in there]
        moved = Counter((copy.id, copy.attempt) for copy in copies if copy.id in done)
        assert set(moved.values()) == {1}, f"the relay had moved these, and moved them again: {[one for one in moved if moved[one] > 1]}"
        assert self.plan.spent, f"never happened: {', '.join(self.plan.unspent)}; the calls were {dict(self.plan.calls)}"
