"""What may become of a call: it raises, is late, is answered wrong or never, or is cancelled from inside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.errors import RequestTimedOutError

from ackwise.testing.hostile.answers import Change, corrupt, empty, failed, short

__all__ = ["HARMS", "SPARING", "Harm", "Send", "Spared"]

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
