"""What was seen last of something that may not answer: asked once for all, kept, and shown with its age."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from ackwise.middleware.errors import Unavailable
from ackwise.plugin.web.lastseen import Seen, SeenByName


class Far:
    """Something far away, with a clock."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.took = 0.0

    async def look(self) -> int:
        self.asked += 1
        number = self.asked
        await self.answers.wait()
        self.time += self.took
        if self.error is not None:
            raise self.error
        return number

    def seen(self, patience: float = 60.0) -> Seen[int]:
        return Seen(self.look, patience, lambda: self.time)


async def test_those_who_ask_at_the_same_time_get_the_same_answer() -> None:
    far = Far()
    seen = far.seen()
    found = await asyncio.gather(*(seen.now() for _ in range(5)))
    assert {each.value for each in found} == {1}
    assert found[0].problem == ""
    assert found[0].as_of == "as of 1970-01-12 13:46:40 UTC, 0 s ago"


async def test_who_reloads_gets_the_last_answer_until_it_is_old() -> None:
    far = Far()
    seen = far.seen()
    await seen.now()
    far.time += 1.9
    assert (await seen.now()).value == 1
    far.time += 0.2
    assert (await seen.now()).value == 2


async def test_an_answer_that_took_long_is_kept_for_as_long() -> None:
    far = Far()
    far.took = 40.0
    seen = far.seen()
    await seen.now()
    far.time += 39.0
    assert (await seen.now()).value == 1


async def test_of_what_does_not_answer_the_last_answer_is_shown_with_the_reason_and_its_age() -> None:
    far = Far()
    seen = far.seen()
    await seen.now()
    far.error, far.time = Unavailable("the brokers are unavailable"), far.time + 90.0
    found = await seen.now()
    assert (found.value, found.problem) == (1, "the brokers are unavailable")
    assert found.as_of.endswith("90 s ago")
    far.error, far.time = None, far.time + 90.0
    assert (await seen.now()).problem == ""


async def test_a_page_does_not_wait_for_ever_and_the_answer_is_there_for_the_next_one() -> None:
    far = Far()
    far.answers.clear()
    seen = far.seen(patience=0.0)
    found = await seen.now()
    assert found.value is None
    assert found.problem.startswith("there is no answer yet")
    far.answers.set()
    found = await until(seen.now, lambda found: found.value is not None)
    assert (found.value, found.problem, far.asked) == (1, "", 1)


async def test_an_error_of_ours_is_no_sentence_and_the_next_one_asks_again() -> None:
    far = Far()
    far.error = RuntimeError()
    seen = far.seen()
    with pytest.raises(RuntimeError):
        await seen.now()
    far.error, far.time = None, far.time + 10
    assert (await seen.now()).value == 2


async def test_of_many_things_a_few_are_asked_at_a_time_and_the_last_ones_are_kept() -> None:
    running, most, asked = 0, 0, list[str]()

    async def look(name: str) -> str:
        nonlocal running, most
        asked.append(name)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return name

    seen = SeenByName(look)
    found = await asyncio.gather(*(seen.now(str(number)) for number in range(20)))
    assert [each.value for each in found] == [str(number) for number in range(20)]
    assert most == 4
    await seen.now("19")
    assert len(asked) == 20
    await seen.now("0")  # it was let go
    assert len(asked) == 21
