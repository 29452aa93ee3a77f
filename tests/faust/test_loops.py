"""Loops of an agent over its stream: what each of them works on, beside one another and one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import faust
import pytest
from faust.types import TP
from tests.waiting import PATIENCE

from ackwise.middleware.message.disposition import DONE, Delayed, Disposition
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.pipeline.streaming import Flight, InFlight, Where
from ackwise.middleware.runs.run import Run
from ackwise.plugin.faust.faustmessages import AckedMessage, Inlet, StreamMessage
from ackwise.plugin.faust.fauststream import Stream


def waiting(stream: Stream, count: int) -> list[InFlight]:
    """Messages in the hands of nobody; their values are their offsets."""
    made = []
    for offset in range(count):
        delivery = Delivery("orders", 0, offset, 0, None, b"", (), Origin("orders", 0, offset, 0))
        raw = AckedMessage("orders", 0, offset, 0.0, 0, cast(Any, []), None, b"", None, tp=TP("orders", 0))
        message = StreamMessage(delivery, offset)
        message.event = faust.Event(stream.app, None, offset, {}, raw)
        made.append(InFlight(Run.of(delivery), message, 1))
    Flight(made)
    return made


@pytest.fixture
async def stream() -> AsyncIterator[Stream]:
    app = faust.App("shop")
    stream = Stream(app.channel(), app=app)
    stream.attach(cast(Any, SimpleNamespace(name="bill", demand=lambda count: None)), Inlet())
    yield stream
    await stream.stop()


def became(members: list[InFlight]) -> list[Disposition | type[Delayed] | None]:
    return [Delayed if isinstance(member.disposition, Delayed) else member.disposition for member in members]


async def test_a_loop_that_goes_on_decides_nothing_for_another_beside_it(stream: Stream) -> None:
    assert stream.inlet is not None
    members = waiting(stream, 3)
    begun, may_go_on = [asyncio.Event() for _ in members], [asyncio.Event() for _ in members]

    async def loop() -> None:
        async for offset in stream:
            begun[offset].set()
            await may_go_on[offset].wait()

    stream.inlet.put(members)
    loops = [asyncio.create_task(loop()) for _ in range(2)]
    await begun[1].wait()
    may_go_on[0].set()
    await begun[2].wait()
    assert became(members) == [DONE, None, None]
    assert members[1].where is Where.TAKEN
    assert stream.fail(ValueError("out of both")) == 2
    assert became(members) == [DONE, Delayed, Delayed]
    for each in loops:
        each.cancel()


async def test_what_a_loop_left_in_the_middle_has_failed_when_its_task_begins_another(stream: Stream) -> None:
    assert stream.inlet is not None
    members = waiting(stream, 2)
    stream.inlet.put(members)
    async for _ in stream:
        break
    async for _ in stream:
        assert became(members) == [Delayed, None]
        break
    task = asyncio.current_task()
    assert task is not None
    stream.end(task)
    assert became(members) == [Delayed, DONE]


async def test_a_loop_whose_every_step_is_a_task_goes_on_all_the_same(stream: Stream) -> None:
    assert stream.inlet is not None
    members = waiting(stream, 2)
    stream.inlet.put(members)
    values = aiter(stream)
    assert [await asyncio.wait_for(anext(values), PATIENCE) for _ in range(2)] == [0, 1]
    assert became(members) == [DONE, None]


async def test_there_is_room_for_as_many_as_an_agent_keeps_before_it_acknowledges_them(stream: Stream) -> None:
    assert stream.inlet is not None
    demanded = [200]
    stream.attach(cast(Any, SimpleNamespace(name="bill", demand=demanded.append)), stream.inlet)
    stream.enable_acks = False
    stream.inlet.put(waiting(stream, 1000))
    kept = 0
    async for _ in stream:
        kept += 1
        assert kept <= 2 * max(demanded), "a lane hands out twice what is demanded"
        if kept == 1000:
            break


async def test_what_was_acknowledged_demands_no_room(stream: Stream) -> None:
    assert stream.inlet is not None
    demanded = [0]
    stream.attach(cast(Any, SimpleNamespace(name="bill", demand=demanded.append)), stream.inlet)
    stream.enable_acks = False
    members = waiting(stream, 1000)
    stream.inlet.put(members)
    async for offset in stream:
        members[offset].decide()
        if offset == 999:
            break
    assert max(demanded) == 0
