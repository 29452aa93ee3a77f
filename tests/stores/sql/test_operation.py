"""Operations without a database: what a generator of statements is given, and what it does once it is left alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

import pytest

from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps, run, run_now


class Script:
    """A runner whose answers are given; a failure is raised."""

    def __init__(self, *answers: Sequence[Answer] | Failure) -> None:
        self.packets = list[Packet]()
        self._answers = iter(answers)

    def now(self, packet: Packet) -> Sequence[Answer]:
        self.packets.append(packet)
        answer = next(self._answers)
        if isinstance(answer, Failure):
            raise answer
        return answer


class Async(Script):
    async def send(self, packet: Packet) -> Sequence[Answer]:
        return self.now(packet)


class Sync(Script):
    def send(self, packet: Packet) -> Sequence[Answer]:
        return self.now(packet)


BUSY = Failure(Problem.BUSY, OSError())


def _counted(notes: list[str]) -> Steps[int]:
    try:
        (answer,) = yield [Statement("SELECT")]
    except Failure as failure:
        notes.append(failure.problem.name)
        (answer,) = yield [Statement("SELECT AGAIN")]
    except GeneratorExit:
        notes.append("closed")
        raise
    return answer.changed


async def test_the_answers_come_back_and_the_result_is_returned() -> None:
    assert await run(_counted([]), Async([Answer(changed=3)])) == 3
    assert run_now(_counted([]), Sync([Answer(changed=3)])) == 3


async def test_a_failure_is_thrown_where_the_packet_was_yielded_and_may_be_answered() -> None:
    for_async, for_sync = list[str](), list[str]()
    assert await run(_counted(for_async), Async(BUSY, [Answer(changed=1)])) == 1
    assert run_now(_counted(for_sync), Sync(BUSY, [Answer(changed=1)])) == 1
    assert for_async == for_sync == ["BUSY"]


async def test_a_failure_that_the_operation_does_not_answer_is_raised() -> None:
    with pytest.raises(Failure) as caught:
        await run(_counted([]), Async(BUSY, BUSY))
    assert caught.value is BUSY
    with pytest.raises(Failure):
        run_now(_counted([]), Sync(BUSY, BUSY))


async def test_an_operation_whose_caller_is_cancelled_sends_nothing_more() -> None:
    notes, asked = list[str](), asyncio.Event()

    class Hanging:
        async def send(self, packet: Packet) -> Sequence[Answer]:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    task = asyncio.create_task(run(_counted(notes), Hanging()))
    await asked.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert notes == ["closed"]


def test_an_operation_begins_anew_each_time_that_it_is_tried() -> None:
    begin = functools.partial(_counted, [])
    assert [run_now(begin(), Sync([Answer(changed=number)])) for number in (1, 2)] == [1, 2]
