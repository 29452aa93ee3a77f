"""What a handler publishes: kept with its message while it runs, sent once that is done, dropped if it is not.

handler: publish(…) → kept        its message is done → Run.publishes → sent in the first step of settling → done
                                  it is not           → dropped: a repeated run publishes anew, under the same ids
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

from ackwise.middleware.batch import Batch
from ackwise.middleware.errors import ConfigurationError, InvalidRuling
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.message import Message, Origin
from ackwise.middleware.outgoing import Outgoing
from ackwise.middleware.run import Run, pick
from ackwise.middleware.sendlater import refuse_too_late
from ackwise.middleware.usercode import shown
from ackwise.middleware.worker import Worker

__all__ = ["Due", "Publication", "Publications", "Publishing", "apart_with_publishes", "identified", "publish", "publishing"]


class Publication(NamedTuple):
    """One message that a handler publishes."""

    message: Outgoing
    has_id: bool
    """The handler gave its id."""
    due_ms: int | None = None
    """Not before this, epoch milliseconds."""


Due = Callable[[float], int | None]
"""When a message is due, epoch milliseconds, given what time it is, epoch seconds; `None` for at once."""


Publications = Mapping[int, Sequence[Publication]]
"""What a handler publishes, by the offset of the message that it is for, where that was read."""


class Publishing:
    """What one call of a handler publishes for the messages that it has."""

    __slots__ = ("_call", "_worker")

    def __init__(self, worker: Worker, call: HandlerCall) -> None:
        self._worker = worker
        self._call = call

    def add(self, outgoing: Outgoing, message: Message[Any] | None, *, has_id: bool, due: Due | None) -> None:
        """Keep `outgoing` for `message`. Raises `InvalidRuling` if that is not in hand, `ConfigurationError` where nothing can be sent."""
        call = self._call
        if call.in_hand is None or call.is_abandoned:
            raise InvalidRuling("app.publish was called after its handler had ended; wait in the handler for whatever publishes")
        if call.transaction is not None and self._worker.outbox is None:
            raise ConfigurationError(
                "app.publish under Transactional needs an outbox in the same database, or the message could be sent and the transaction "
                "rolled back; add app.use(Outbox(url)) with the URL of Transactional"
            )
        now = self._worker.wall()
        due_ms = None if due is None else due(now)
        if due_ms is not None:
            refuse_too_late(outgoing.topic, due_ms, round(now * 1000))
        if due_ms is not None and self._worker.delayed is None:
            raise ConfigurationError("app.publish with delay= or at= needs topics of the group that wait for it; set delayed_sends=True")
        offset = self._offset_of(message)
        if call.publications is None:
            call.publications = {}
        call.publications.setdefault(offset, []).append(Publication(outgoing, has_id, due_ms))

    def _offset_of(self, message: Message[Any] | None) -> int:
        """Where the message was read that is named, or that alone is in hand."""
        call = self._call
        if isinstance(call.in_hand, Batch):
            if message is None:
                raise InvalidRuling("app.publish in a handler of batches must say for which message; write app.publish(…, source=message)")
            place = call.in_hand.position(message)
            if place in call.given:
                raise InvalidRuling(
                    "app.publish in a middleware came after call_next had this message; publish before it, or in the handler"
                )
            offset: int = next(islice(chain.from_iterable(run.offsets for run in call.working_on), place, None))
            return offset
        if message is None and not _is_in(call):
            raise InvalidRuling("app.publish in a task that the handler started must say for which message; give it source=message")
        if message is not None and message is not call.in_hand:
            raise InvalidRuling(
                f"{shown(message, repr)} is not what the handler has now; leave out source=, or give it the handler's own message"
            )
        first: int = call.working_on[0].first
        return first


#: What the handler publishes in whose task this is.
publishing: ContextVar[Publishing | None] = ContextVar("ackwise_publishing", default=None)


def publish(outgoing: Outgoing, message: Message[Any] | None, *, has_id: bool, due: Due | None = None) -> bool:
    """Keep it with the message that the handler has. Return False outside of a handler. Raises what `Publishing.add` does."""
    if (kept := publishing.get()) is None:
        return False
    kept.add(outgoing, message, has_id=has_id, due=due)
    return True


def identified(
    publications: Sequence[Publication], origin: Origin, *, group: str, handler: str, delayed: Callable[[Outgoing, int], Outgoing] | None
) -> list[Outgoing]:
    """The messages with their ids, which are the same whenever the message at `origin` publishes the same."""
    seen: Counter[bytes] = Counter()
    found: list[Outgoing] = []
    for message, has_id, due_ms in publications:
        if not has_id:
            content = _digest(group, handler, *origin, message.topic, message.partition, message.key, message.value, *message.headers)
            seen[content] += 1
            message = replace(message, message_id=_digest(content, seen[content]).hex())
        found.append(message if due_ms is None or delayed is None else delayed(message, due_ms))
    return found


def apart_with_publishes(
    runs: list[Run], done: Sequence[Run], publications: Publications, make: Callable[[Sequence[Publication], Origin], list[Outgoing]]
) -> list[Run]:
    """Let the messages of `done` that publish something fall out, each with what it publishes; returns all of them."""
    parts: list[Run] = []
    for run in done:
        for single in (singles := pick(runs, run, [place for place, offset in enumerate(run.offsets) if offset in publications])):
            single.publishes = make(publications[single.first], single.origin)
        parts += singles if not len(run) or run in singles else [run, *singles]
    return parts


def _is_in(call: HandlerCall) -> bool:
    """Whether this is the handler's own task, or its thread, which has none."""
    try:
        return asyncio.current_task() is call.task
    except RuntimeError:
        return True


def _digest(*parts: object) -> bytes:
    """16 bytes that differ for parts that differ, whatever is in them."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, tuple):
            data = _digest(*part)
        else:
            data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{type(part).__name__}{len(data)}:".encode())
        digest.update(data)
    return digest.digest()
