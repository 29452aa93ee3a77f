"""What becomes of the messages that an agent works on, with filters, with what it sends, and in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from functools import partial

import pytest
from tests.faust.desk import flown

from ackwise.middleware.message.disposition import DONE, Delayed
from ackwise.middleware.pipeline.streaming import InFlight, Where
from ackwise.plugin.faust.faustmessages import AckedMessage
from ackwise.plugin.faust.work import Work


def taken(count: int) -> list[InFlight]:
    made = flown(count)
    for member in made:
        member.take(0.0)
    return made


async def test_what_a_filter_took_out_of_a_batch_is_done_and_not_in_it() -> None:
    members = taken(3)
    work = Work(members, "bill")
    work.ack(members[1])
    work.show([members[0], members[2]])
    assert members[1].disposition is DONE
    assert [message.value for message in work.batch] == [0, 2]
    work.batch.ack_index = 0
    work.succeed()
    assert members[0].disposition == DONE
    assert isinstance(members[2].disposition, Delayed)


async def test_a_send_that_fails_brings_back_what_a_filter_took_out_after_it() -> None:
    members = taken(2)
    work = Work(members, "bill")
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.track(sent)
    work.ack(members[0])
    work.show([members[1]])
    work.succeed()
    assert [member.where for member in members] == [Where.TAKEN, Where.TAKEN]
    sent.set_exception(ConnectionError("refused"))
    await asyncio.sleep(0)
    assert [member.where for member in members] == [Where.BACK, Where.BACK]
    assert members[0].disposition is None
    assert isinstance(members[1].disposition, Delayed)


async def test_what_a_filter_took_out_comes_back_if_the_agent_fails_before_its_sends_are_known() -> None:
    members = taken(2)
    work = Work(members, "bill")
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.track(sent)
    work.ack(members[0])
    work.show([members[1]])
    work.fail(ValueError("broken"))
    assert members[0].where is Where.BACK
    assert members[0].disposition is None
    sent.set_result(None)
    await asyncio.sleep(0)
    assert members[0].disposition is None


async def test_what_an_agent_that_was_cancelled_had_is_not_decided() -> None:
    members = taken(2)
    work = Work(members, "bill")
    work.batch.ack_index = 1
    work.forsake()
    assert [(member.where, member.disposition) for member in members] == [(Where.BACK, None)] * 2


async def test_what_is_acknowledged_comes_back_if_something_that_was_sent_before_is_refused() -> None:
    members = taken(1)
    work = Work(members, "bill")
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.track(sent)
    work.ack(members[0])
    sent.set_exception(ConnectionError("refused"))
    await asyncio.sleep(0)
    assert isinstance(members[0].disposition, Delayed)
    assert isinstance(members[0].error, ConnectionError)


@pytest.mark.parametrize("refused", [False, True])
async def test_what_was_ruled_done_before_the_agent_raised_is_done_once_what_it_sent_is_accepted(refused: bool) -> None:
    members = taken(2)
    work = Work(members, "bill")
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.track(sent)
    work.batch.done(work.batch[0])
    work.fail(ValueError("broken"))
    assert members[0].where is Where.TAKEN
    if refused:
        sent.set_exception(ConnectionError("refused"))
    else:
        sent.set_result(None)
    await asyncio.sleep(0)
    assert isinstance(members[0].disposition, Delayed) if refused else members[0].disposition is DONE
    assert isinstance(members[1].disposition, Delayed)


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_a_message_that_is_decided_is_gone_without_the_garbage_collector() -> None:
    members = taken(2)
    work = Work(members, "bill")
    raw = AckedMessage("orders", 0, 0, 0.0, 0, None, b"", b"", None)
    raw.acknowledge = partial(work.ack, members[0])
    assert raw.ack(None)
    work.succeed()
    entries = [weakref.ref(member.run) for member in members]
    del members, work
    assert [entry() for entry in entries] == [None, None]
