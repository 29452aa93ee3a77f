"""Messages that a handler publishes: kept while it runs, sent once its message is done, dropped otherwise.

    handler: publish(…) → kept        its message is done → Run.publishes → sent in the first step of settling → done
                                      it is not           → dropped: a repeated run publishes again, under the same ids

A message is done only once everything that it publishes is acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

from ackwise.middleware.errors import ConfigurationError, InvalidRuling, PublishRefused, PublishUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.log import Log
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Delayed, Failure
from ackwise.middleware.message.message import Message, Origin
from ackwise.middleware.message.outgoing import Acked, Outgoing, SendFailed
from ackwise.middleware.message.refusals import MissingTopics
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.delaytopic import refuse_too_late
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.runs.redelivery import decide
from ackwise.middleware.runs.run import Run, Stage, pick
from ackwise.middleware.usercode import shown


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
        """Keep `outgoing` for `message`. Raise `InvalidRuling` if it is not in flight, `ConfigurationError` where nothing can be sent."""
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
        """Return where the message was read that is named, or that alone is in flight."""
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
    """Return whether this is the handler's own task, or its thread, which has none."""
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


log = Log()

#: Seconds until what was not acknowledged is sent again, as a copy is.
_AGAIN = 5.0

#: Seconds that a topic may be missing until what is published to it has failed: it is so at the third look.
_PATIENCE = 1.8 * _AGAIN


class Sending:
    """Sends for the messages of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._missing = MissingTopics(_PATIENCE, worker.monotonic)

    async def __call__(self, publishing: Sequence[Run]) -> None:
        """Send what each of `publishing` publishes, and leave it PUBLISHED if all is acknowledged, held if not.

        What is acknowledged is not sent again. One of which something is refused for good has failed, as if its handler had raised that;
        so has one that publishes to a topic that is missing for ten seconds.
        """
        sender = self._worker.sender
        messages = [message for run in publishing for message in run.publishes]
        answers = iter([] if sender is None else await sender.send_many(messages))
        waiting: list[tuple[Run, SendFailed]] = []
        for run in publishing:
            failures: list[SendFailed] = []
            left = []
            for message in run.publishes:
                answer = self._missing.judge(message.topic, next(answers, _NO_SENDER))
                if isinstance(answer, Acked):
                    self._record(run, answer)
                else:
                    failures.append(answer)
                    left.append(message)
            run.publishes = left
            if not failures:
                self._succeed(run)
            elif refusal := next((failure for failure in failures if not failure.retriable), None):
                self._fail(run, refusal)
            else:
                waiting.append((run, failures[0]))
        if waiting:
            error = PublishUnavailable(waiting[0][1].cause)
            self._worker.postpone([run for run, _ in waiting], "what their handler published is not acknowledged", error, wait=_AGAIN)

    def _succeed(self, run: Run) -> None:
        """Only now: until then a repeated run is what sends the rest."""
        run.stage, run.tries, run.succeeded = Stage.PUBLISHED, 0, True
        if self._worker.leases is not None:
            self._worker.leases.remember_successes(run)

    def _fail(self, run: Run, refusal: SendFailed) -> None:
        run.publishes = []
        error = PublishRefused(refusal.cause)
        broken = decide(run, Delayed(failure=Failure.of(error)), self._worker.later_of(self._agent), error, in_place=self._agent.in_place)
        self._worker.report_broken(self._agent.name, [] if broken is None else [broken])
        log.warning(
            "publish of a handler refused",
            handler=self._agent.name,
            topic=run.origin.topic,
            partition=run.origin.partition,
            offset=run.origin.offset,
            attempt=run.reconsume_times + 1,
            error=refusal.cause,
        )

    def _record(self, run: Run, acked: Acked) -> None:
        if self._worker.sink is None:
            return
        topic, partition, offset, _ = run.origin
        self._worker.sink.record(
            Event(
                EventCode.PRODUCED,
                acked.topic,
                acked.partition,
                None if acked.offset < 0 else acked.offset,
                self._agent.name,
                record_ts_ms=acked.timestamp,
                dedup_key=acked.message_id,
                attrs=json.dumps({"origin": f"{topic}/{partition}/{offset}"}),
            )
        )


#: Never so in our worker; if it were, nothing would be lost.
_NO_SENDER = SendFailed("this worker has nothing to send with", retriable=True)
