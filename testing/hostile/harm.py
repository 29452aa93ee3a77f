"""Harms to a call: it raises, is late, gets a wrong answer or none, or is cancelled from inside.

A wrong answer lacks a partition or all content, carries an error, or has one bit flipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.errors import RequestTimedOutError

#: A response of aiokafka; its fields are plain attributes.
Answer = Any

#: Returns the answer changed, or `None` if there is nothing in it to change.
Change = Callable[[Answer], Answer | None]

#: The partition that a change of one partition is about; of a delay topic that of 1 s, since no relay asks for partition 0 in its group.
_ONE, _ONE_OF_DELAYS = 0, 3

#: The first byte of a batch of records that its checksum covers.
_CHECKED: Final = 21

_Result = tuple[Any, ...]


def short(answer: Answer) -> Answer | None:
    """Without one partition; without the first topic, where the answer is about topics."""
    if _is_by_partition(answer):
        return _by_partition(answer, lambda result, one: None if result[0] == one else result)
    return _replaced(answer, lambda results: results[1:])


def empty(answer: Answer) -> Answer | None:
    """Return the answer without results."""
    return _replaced(answer, lambda results: [])


def failed(code: int, *, one: bool = False) -> Change:
    """With the error `code`: of the answer where it has an error as a whole, otherwise of all that is in it, or of one partition alone."""

    def change(answer: Answer) -> Answer | None:
        fields = answer.SCHEMA.names
        if "error_code" in fields and not one:
            answer.error_code = code
            return empty(answer) if "topics" in fields else answer
        if _is_by_partition(answer):
            return _by_partition(answer, lambda result, it: result if one and result[0] != it else _with_error(answer, result, code))
        at = 0 if "resources" in fields else 1
        return _replaced(answer, lambda results: [(*result[:at], code, *result[at + 1 :]) for result in results])

    return change


def corrupt(answer: Answer) -> Answer | None:
    """With one bit of the records of one partition flipped, whose checksum is wrong then."""

    def flip(result: _Result, one: int) -> _Result:
        *rest, records = result
        if result[0] != one or len(records or b"") <= _CHECKED:
            return result
        return (*rest, bytes([*records[:_CHECKED], records[_CHECKED] ^ 1, *records[_CHECKED + 1 :]]))

    return _by_partition(answer, flip)


def _is_by_partition(answer: Answer) -> bool:
    return "topics" in answer.SCHEMA.names and not type(answer).__name__.startswith("Metadata")


def _by_partition(answer: Answer, change: Callable[[_Result, int], _Result | None]) -> Answer | None:
    """`answer` with what `change` makes of the result of each partition; `None` leaves it out."""
    before, answer.topics = answer.topics, []
    for name, *more, results in before:
        one = _ONE_OF_DELAYS if name.endswith(".delay") else _ONE
        answer.topics.append((name, *more, [made for result in results if (made := change(result, one)) is not None]))
    return answer if answer.topics != before else None


def _replaced(answer: Answer, change: Callable[[list[_Result]], list[_Result]]) -> Answer | None:
    name = next(name for name in ("topics", "topic_errors", "resources") if name in answer.SCHEMA.names)
    before = getattr(answer, name)
    setattr(answer, name, change(before))
    return answer if getattr(answer, name) != before else None


def _with_error(answer: Answer, result: _Result, code: int) -> _Result:
    if type(answer).__name__.startswith("OffsetFetch"):
        partition, _, metadata, _ = result
        return (partition, -1, metadata, code)
    return (result[0], code, *result[2:])


#: Makes the real call; may be called more than once.
Send = Callable[[], Awaitable[Any]]

#: Makes the call in its own way, and returns or raises what the caller gets.
Harm = Callable[[Send], Awaitable[Any]]

#: Seconds that an answer is late; a session of these tests is not longer.
_LATE: Final = 1.0


class Spared(Exception):
    """The call had nothing in it that could be harmed: the caller gets `answer`, and the next call is harmed."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class Odd(ValueError):
    """An error that no Kafka client declares."""


async def _moved(send: Send) -> None:
    """Make the call. A fetch that brought nothing has not moved, and is spared."""
    if (answer := await send()) == {}:
        raise Spared(answer)


async def _raises(send: Send) -> Any:
    raise RequestTimedOutError("the hostile client did not make this call")


async def _raises_after(send: Send) -> Any:
    await _moved(send)
    raise RequestTimedOutError("the hostile client lost this answer")


async def _raises_oddly(send: Send) -> Any:
    await _moved(send)
    raise Odd("the hostile client lost this answer")


async def _cancelled(send: Send) -> Any:
    raise asyncio.CancelledError


async def _cancelled_after(send: Send) -> Any:
    await _moved(send)
    raise asyncio.CancelledError


async def _late(send: Send) -> Any:
    answer = await send()
    await asyncio.sleep(_LATE)
    return answer


async def _times_out(send: Send) -> Any:
    await asyncio.sleep(_LATE)
    raise RequestTimedOutError("the hostile client never made this call")


async def _never(send: Send) -> Any:
    await send()
    await asyncio.get_running_loop().create_future()


async def _twice(send: Send) -> Any:
    """The first answer is lost, and a second attempt runs beside the first."""
    _, answer = await asyncio.gather(send(), send())
    return answer


def _answers(change: Change) -> Harm:
    async def harm(send: Send) -> Any:
        answer = await send()
        changed = change(answer)
        if changed is None:
            raise Spared(answer)
        return changed

    return harm


#: Errors of Kafka by their numbers, those that its clients treat in different ways.
_ERRORS: Final = {
    "unknown": -1,
    "out-of-range": 1,
    "no-topic": 3,
    "no-leader": 5,
    "not-leader": 6,
    "too-large": 10,
    "loading": 14,
    "no-coordinator": 15,
    "not-coordinator": 16,
    "few-replicas": 19,
    "old-generation": 22,
    "unknown-member": 25,
    "rebalancing": 27,
    "not-allowed": 29,
    "group-not-allowed": 30,
    "not-controller": 41,
    "broken-disk": 56,
}

#: What is done to an answer; `loading` is an error of everything that was asked, `loading-one` of partition 0.
_CHANGES: Final[dict[str, Change]] = {
    "short": short,
    "empty": empty,
    "corrupt": corrupt,
    **{name: failed(code) for name, code in _ERRORS.items()},
    **{f"{name}-one": failed(code, one=True) for name, code in _ERRORS.items()},
}

HARMS: Final[dict[str, Harm]] = {
    "raises": _raises,
    "raises-after": _raises_after,
    "raises-oddly": _raises_oddly,
    "cancelled": _cancelled,
    "cancelled-after": _cancelled_after,
    "late": _late,
    "times-out": _times_out,
    "never": _never,
    "twice": _twice,
    **{name: _answers(change) for name, change in _CHANGES.items()},
}
"""Every harm by its name: what may become of a call."""

#: Those that may find nothing to harm.
SPARING: Final = frozenset({"raises-after", "raises-oddly", "cancelled-after", *_CHANGES})
