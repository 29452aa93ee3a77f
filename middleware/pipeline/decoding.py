"""Decoding: the values of a run, and what was raised instead of one. Nothing is decided here.

A decoder is the user's, or that of a model. What it raises is kept beside the place of its message; `CodecUnavailable` and what stops the
app end the decoding of a run, since whatever is behind such a message waits for it, or never comes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context
from operator import attrgetter
from typing import Any, Final, cast

from ackwise.middleware.errors import CodecUnavailable
from ackwise.middleware.message.message import Message
from ackwise.middleware.owntask import in_a_task
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run
from ackwise.middleware.usercode import Called, Raised, Returned, Stops, called, is_a, leaves

#: Why a message is held that can't be decoded now.
CODEC_AWAY: Final = "what its decoder needs is not available"

#: Seconds that an asynchronous decoder may take for one value: it may ask a registry, and that may be unavailable.
DECODE_WITHIN: Final = 10.0

#: Seconds that it has to end once it was cancelled; then it is abandoned.
_END_WITHIN: Final = 1.0

_values = attrgetter("value")

#: Calls of asynchronous decoders that did not end when they were cancelled.
_left: Final = set[asyncio.Task[Any]]()


def decoded(run: Run, agent: Agent) -> tuple[list[object], dict[int, Raised | Stops]]:
    """The values of `run`, and by place what was raised; there the value is `None`. Behind what ends it there are no values."""
    if agent.decodes_async:
        return _taken_apart(run)
    make = agent.decode if agent.message is None else agent.message
    each = (lambda raw: copy_context().run(make, raw)) if agent.decodes_own else make
    raw = _raw(run, agent)
    values: list[object] = []
    bad: dict[int, Raised | Stops] = {}
    while len(values) < len(run):
        outcome = called(values.extend, map(each, raw))  # goes on behind one that raised
        if len(values) < len(run):
            # Where nothing was raised it was the decoder's own StopIteration, which `map` takes for the end of the records.
            bad[len(values)] = failure = Raised(StopIteration()) if isinstance(outcome, Returned) else outcome
            if ends(failure):
                break
            values.append(None)
    return values, bad


async def decoded_ahead(run: Run, agent: Agent) -> list[Called]:
    """Return the outcome of the asynchronous decoder for each message of `run`."""
    found: list[Called] = []
    for raw in _raw(run, agent):
        found.append(value := await _decoded(agent.decode, raw))
        if not isinstance(value, Returned) and ends(value):
            found += [value] * (len(run) - len(found))
            break
    return found


async def _decoded(decode: Callable[[Any], Any], raw: object) -> Called:
    """In its own task: what it leaves of a cancellation affects no other call."""
    task, found = in_a_task(decode, raw)
    try:
        await asyncio.wait({task}, timeout=DECODE_WITHIN)
        if found:
            return found[0]
    finally:
        if not task.done():
            await _end(task)
    return Raised(CodecUnavailable(f"the decoder did not return within {DECODE_WITHIN:g} s"))


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=_END_WITHIN)
    if not task.done():
        _left.add(task)
        task.add_done_callback(_left.discard)


def _taken_apart(run: Run) -> tuple[list[object], dict[int, Raised | Stops]]:
    ahead = run.ahead
    if ahead is None:
        return [], {0: Raised(CodecUnavailable("it was not decoded yet"))}
    bad = {place: outcome for place, outcome in enumerate(ahead) if not isinstance(outcome, Returned)}
    return [outcome.value if isinstance(outcome, Returned) else None for outcome in ahead], bad


def take(run: Run, values: list[object], agent: Agent) -> None:
    """Let `run` have `values`, which no handler has seen."""
    if agent.message is None:
        run.values, run.made = values, None
    else:
        run.made = cast("list[Message[Any]]", values)
        for message in run.made if run.is_used else ():
            if message is not None:
                message.fencing_token, message.in_place = run.claims.grant.epoch or None, run.in_place
    run.ahead = None
    run.prepared, run.is_used = True, False


async def decode_again(run: Run, agent: Agent) -> bool:
    """Give `run` new values, since a handler may have changed those that it has; `False` if one of them can't be decoded now."""
    if agent.decodes_async:
        run.ahead = await decoded_ahead(run, agent)
    values, bad = decoded(run, agent)
    if not bad:
        take(run, values, agent)
    return not bad


def _raw(run: Run, agent: Agent) -> Iterator[Any]:
    """What is decoded of each message."""
    if agent.message is not None:
        return iter(run.deliveries())
    if agent.decodes == "message":
        return (Message(record, record.value, run.place) for record in run.records)
    return map(_values, run.records)


def unavailable(failure: Raised | Stops) -> CodecUnavailable | None:
    """The `CodecUnavailable` that was raised, or one of a group of nothing else."""
    each = leaves(failure.error)
    found = [leaf for leaf in each if is_a(leaf, CodecUnavailable)]
    return cast(CodecUnavailable, found[0]) if found and len(found) == len(each) else None


def has_failed(failure: Raised | Stops) -> bool:
    """Whether the message has failed, rather than that it can't be decoded: another time there may be memory, or room on the stack."""
    return all(is_a(leaf, MemoryError, RecursionError) for leaf in leaves(failure.error))


def ends(failure: Raised | Stops) -> bool:
    """Return whether nothing is decoded behind a message whose decoder raised this."""
    return isinstance(failure, Stops) or unavailable(failure) is not None
