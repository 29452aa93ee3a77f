"""Decoding: the values of a run, and what was raised instead of one. Nothing is decided here.

A decoder is the user's, or that of a model. What it raises is kept beside the place of its message; `CodecUnavailable` and what stops the
app end the decoding of a run, since whatever is behind such a message waits for it, or never comes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ackwise.middleware.agent import Agent
from ackwise.middleware.errors import CodecUnavailable
from ackwise.middleware.exceptiongroups import leaves
from ackwise.middleware.message import Message
from ackwise.middleware.rulings import stops
from ackwise.middleware.run import Run

__all__ = ["CODEC_AWAY", "Raised", "decoded", "decoded_ahead", "ends", "unavailable"]

#: Why a message is held that can't be decoded now.
CODEC_AWAY: Final = "what its decoder needs is not available"

#: Seconds that an asynchronous decoder may take for one value: it may ask a registry, and that may be away.
DECODE_WITHIN: Final = 10.0

_values = attrgetter("value")


class Raised(NamedTuple):
    """What a decoder raised instead of a value."""

    error: BaseException


def decoded(run: Run, agent: Agent) -> tuple[list[object], dict[int, BaseException]]:
    """The values of `run`, and by place what was raised; there the value is `None`. Behind what ends it there are no values."""
    if agent.decodes_async:
        return _taken_apart(run)
    make = agent.decode if agent.message is None else agent.message
    raw = _raw(run, agent)
    values: list[object] = []
    bad: dict[int, BaseException] = {}
    while len(values) < len(run):
        try:
            values.extend(map(make, raw))  # goes on behind one that raised
            if len(values) < len(run):
                raise StopIteration  # the decoder's own, which `map` takes for the end of the records
        except BaseException as error:  # noqa: BLE001  # the decoder is the user's, and one in Rust may panic
            bad[len(values)] = error
            if ends(error):
                break
            values.append(None)
    return values, bad


async def decoded_ahead(run: Run, agent: Agent) -> list[object]:
    """What the asynchronous decoder returned for each message of `run`, `Raised` where it raised."""
    found: list[object] = []
    for raw in _raw(run, agent):
        found.append(value := await _decoded(agent.decode, raw))
        if isinstance(value, Raised) and ends(value.error):
            found += [value] * (len(run) - len(found))
            break
    return found


async def _decoded(decode: Callable[[Any], Any], raw: object) -> object:
    limit = asyncio.timeout(DECODE_WITHIN)
    try:
        async with limit:
            decoding: Awaitable[object] = decode(raw)
            return await decoding
    except BaseException as error:  # the decoder is the user's
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # whatever the decoder makes of that
            raise asyncio.CancelledError from error
        if limit.expired():
            return Raised(CodecUnavailable(f"the decoder did not return within {DECODE_WITHIN:g} s"))
        return Raised(error)


def _taken_apart(run: Run) -> tuple[list[object], dict[int, BaseException]]:
    ahead = run.ahead
    if ahead is None:
        return [], {0: CodecUnavailable("it was not decoded yet")}
    bad = {place: value.error for place, value in enumerate(ahead) if isinstance(value, Raised)}
    return [None if isinstance(value, Raised) else value for value in ahead], bad


def _raw(run: Run, agent: Agent) -> Iterator[Any]:
    """What is decoded of each message."""
    if agent.message is not None:
        return iter(run.deliveries())
    if agent.decodes == "message":
        return (Message(record, record.value, run.place) for record in run.records)
    return map(_values, run.records)


def unavailable(error: BaseException) -> CodecUnavailable | None:
    """The `CodecUnavailable` that `error` is, or a group of nothing else."""
    each = leaves(error)
    found = [leaf for leaf in each if isinstance(leaf, CodecUnavailable)]
    return found[0] if len(found) == len(each) else None


def ends(error: BaseException) -> bool:
    """Whether nothing is decoded behind a message whose decoder raised this."""
    return unavailable(error) is not None or stops(error)
