"""`at_once`: what needs not wait is done at once, and the rest of anything else goes on as if nothing had been between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ackwise.stores.sql.connections import at_once


async def refuse(rest: Coroutine[Any, Any, str]) -> str:
    rest.close()
    pytest.fail("it had to wait for nothing")


async def by_task(rest: Coroutine[Any, Any, str]) -> str:
    return await asyncio.create_task(rest)


async def in_place(rest: Coroutine[Any, Any, str]) -> str:
    return await rest


async def test_what_waits_for_nothing_is_done_without_the_other_way() -> None:
    async def answer() -> str:
        return "answer"

    async def fail() -> str:
        raise OSError("refused")

    assert await at_once(answer(), refuse) == "answer"
    with pytest.raises(OSError, match="refused"):
        await at_once(fail(), refuse)


async def test_what_waits_goes_on_in_another_task_and_gets_answers_and_errors() -> None:
    loop = asyncio.get_running_loop()
    answered, refused = loop.create_future(), loop.create_future()

    async def wait() -> str:
        first = await answered
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="refused"):
            await refused
        return f"{first}, and more"

    waiting = asyncio.ensure_future(at_once(wait(), by_task))
    await asyncio.sleep(0)
    answered.set_result("answer")
    refused.set_exception(OSError("refused"))
    assert await waiting == "answer, and more"


@pytest.mark.parametrize("otherwise", [by_task, in_place])
async def test_a_cancellation_reaches_what_waits_and_may_be_passed_over_there(
    otherwise: Callable[[Coroutine[Any, Any, str]], Coroutine[Any, Any, str]],
) -> None:
    async def wait() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "late"
        return "never"

    waiting = asyncio.ensure_future(at_once(wait(), otherwise))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    assert await waiting == "late"


@pytest.mark.parametrize("otherwise", [by_task, in_place])
async def test_a_cancellation_that_comes_together_with_the_answer_counts(
    otherwise: Callable[[Coroutine[Any, Any, str]], Coroutine[Any, Any, str]],
) -> None:
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        return await answered

    waiting = asyncio.ensure_future(at_once(wait(), otherwise))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answered.set_result("answer")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
