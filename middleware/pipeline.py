"""The spine: admit, execute, settle. What a batch of entries goes through between fetch and commit.

Nothing here commits. The host looks at the stage of each entry afterwards: SETTLED ones move the watermark, all
others are held and come up again at `not_before`, from the stage that they reached. So an error in our own machinery
is never an acknowledgement, and a step that failed is repeated alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ackwise.middleware import identity
from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import Dead, Disposition, Done, Duplicate, Failure, Later, Reason
from ackwise.middleware.entry import Entry, Run, Stage
from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, StoreUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.isolation import Isolation
from ackwise.middleware.leases import Leases
from ackwise.middleware.message import Message
from ackwise.middleware.policies import Dedup
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.retry import ConsumeLater, SendBack
from ackwise.middleware.rulings import STOPS, Raised, Returned, rule
from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Busy, Claim, ClaimAnswer, ClaimKey, Complete, Outcome, Release, Stale
from ackwise.middleware.wire import dead_letter, retry_copy, shrink

__all__ = ["Assignment", "HandlerStopped", "Pipeline", "Worker"]

log = logging.getLogger("ackwise")

#: Losses of one attempt after which a message runs alone, and after which it is a dead letter.
ALONE_AFTER = 3
DEAD_AFTER = 10

#: Seconds until a publish is repeated. RocketMQ: `submitConsumeRequestLater`.
PUBLISH_AGAIN = 5.0

#: Seconds between warnings about a handler that does not come back.
HANG_WARNING = 60.0

_MS_PER_DAY = 86_400_000


class HandlerStopped(BaseException):
    """A handler raised what stops a program, such as `SystemExit`; its message is not ruled on."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Assignment(Protocol):
    """What the pipeline asks of the partition that a batch came from."""

    @property
    def cut_off(self) -> bool:
        """The partition is no longer ours: nothing may be published for it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What the pipelines of one worker share."""

    group: str
    later: ConsumeLater
    publisher: Publisher
    retry_topic: str
    dead_letter_topic: str
    delay_topics: Sequence[str]
    """One per delay level, shortest first."""
    dedup: Dedup | None = None
    leases: Leases | None = None
    sink: EventSink | None = None
    clock_skew: float = 0.5
    """Seconds added to due times, so that a copy is never early between clocks that differ by less."""
    isolation: Isolation = field(default_factory=Isolation)
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    exec_ids: Iterable[int] = field(default_factory=lambda: itertools.count(random.Random().getrandbits(23) << 40 | 1))

    def record(self, event: Event) -> None:
        if self.sink is not None:
            self.sink.record(event)


class Pipeline:
    """The spine for one handler.

    `await pipeline(entries, assignment)` takes entries of one partition, in any stage below SETTLED, and leaves
    each of them SETTLED or held. Raises `HandlerStopped` after everything else was settled.
    """

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self.agent = agent
        self._worker = worker
        self._leases = worker.leases
        dedup = worker.dedup
        self._identity = None if dedup is None or worker.leases is None else identity.Identity(dedup.namespace, worker.group, agent.name, dedup.epoch)
        self._dedup = dedup
        self._exec_ids = iter(worker.exec_ids)
        self.undeduplicated = 0  #: messages whose key was None or ""

    async def __call__(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        stopped = self._prepare(entries)
        if stopped is None:
            async with self._turn(entries) as may_run:
                if may_run:
                    await self._admit(entries)
                    stopped = await self._execute(entries)
        self._follow(entries)
        await self._settle(entries, assignment)
        if stopped is not None:
            raise HandlerStopped(stopped)

    def _turn(self, entries: Sequence[Entry]) -> Any:
        isolation = self._worker.isolation
        if self._leases is not None and any(entry.alone and entry.stage is Stage.FETCHED for entry in entries):
            return _Alone(isolation, self._leases.lease, entries, self._worker.monotonic)
        return _Beside(isolation)

    # -- admit: decode, key, claim

    def _prepare(self, entries: Sequence[Entry]) -> BaseException | None:
        for entry in entries:
            if entry.prepared or entry.stage is not Stage.FETCHED:
                continue
            try:
                entry.message = Message(entry.delivery, self.agent.decode(entry.delivery.value))
            except Exception as error:  # the decoder is the user's
                entry.prepared = True
                entry.rule(Dead(Reason.UNDECODABLE, Failure.of(error)))
                continue
            try:
                self._identify(entry, entry.message)
            except STOPS as error:
                return error
            except BaseException as error:  # the key function is the user's: as if the handler had raised
                entry.prepared = True
                self._decide(entry, Later(failure=Failure.of(error)), error)
            entry.prepared = True
        return None

    def _identify(self, entry: Entry, message: Message[Any]) -> None:
        if self._identity is None or self._dedup is None:
            return
        delivery, origin, day = entry.delivery, entry.delivery.origin, entry.delivery.origin.timestamp_ms // _MS_PER_DAY
        if self._dedup.key is not None:
            key = self._dedup.key(message)
            if key is not None and not isinstance(key, str | bytes):
                raise TypeError(f"the key function of Dedup answered a {type(key).__name__}; it must answer a str, bytes or None")
            if not key:
                self.undeduplicated += 1
                return
            dedup_id, key_day = identity.business_id(key), None
        elif producer := message.header(self._dedup.message_id_header):
            dedup_id, key_day = identity.producer_id(producer), day
        else:
            dedup_id, key_day = identity.coordinates_id(*origin), day
        claim_id, entry.dedup_hash = self._identity.of(dedup_id, delivery.replay_id)
        entry.key = ClaimKey(claim_id, key_day, delivery.attempt)

    async def _admit(self, entries: Sequence[Entry]) -> None:
        fetched = [entry for entry in entries if entry.stage is Stage.FETCHED]
        claimants: list[tuple[Entry, Claim]] = []
        for entry in self._elect(fetched):
            if entry.key is None or self._leases is None:
                entry.stage = Stage.ADMITTED
            else:
                entry.token = entry.token or self._leases.token()
                claimants.append((entry, Claim(entry.key, entry.token)))
        if self._leases is None or not claimants:
            return
        asked_at = self._worker.monotonic()
        try:
            result = await self._leases.exchange(claims=[claim for _, claim in claimants])
        except StoreUnavailable as error:  # the tokens stay: the same claims are asked again
            self._hold([entry for entry, _ in claimants], "the store is not available", error)
            return
        for (entry, _), answer in zip(claimants, result.claims, strict=True):
            self._take(entry, answer, asked_at, self._leases)

    @staticmethod
    def _elect(fetched: Sequence[Entry]) -> list[Entry]:
        """Of each key the highest attempt leads, the first among equals; equal ones follow it, lower ones are stale."""
        leaders: dict[bytes, Entry] = {}
        for entry in fetched:
            if entry.key is not None:
                leader = leaders.get(entry.key.id)
                if leader is None or leader.key is None or entry.key.attempt > leader.key.attempt:
                    leaders[entry.key.id] = entry
        elected = []
        for entry in fetched:
            leader = None if entry.key is None else leaders[entry.key.id]
            if leader is None or leader is entry or leader.key is None or entry.key is None:
                entry.leader = None
                elected.append(entry)
            elif entry.key.attempt < leader.key.attempt:
                entry.rule(Duplicate(stale=True, leader=str(leader.delivery.origin)))
            else:
                entry.leader = leader
        return elected

    def _take(self, entry: Entry, answer: ClaimAnswer, asked_at: float, leases: Leases) -> None:
        match answer:
            case Acquired(epoch, lost, took_unreleased):
                leases.hold(entry, asked_at)
                entry.epoch, entry.lost, entry.took_unreleased, entry.tries = epoch, lost, took_unreleased, 0
                if entry.succeeded:
                    entry.rule(Done())
                elif entry.key is not None and leases.succeeded(entry.key.id):
                    entry.rule(Duplicate())  # another record of this key succeeded here: completed at once, never run
                elif lost >= DEAD_AFTER:
                    entry.rule(Dead(Reason.CRASHED_WORKER))
                elif lost >= ALONE_AFTER and not entry.alone:
                    entry.alone = True
                    leases.give_back(entry)
                    entry.hold(self._worker.monotonic(), f"{lost} workers died of it: it runs alone")
                    log.warning("%s: %d workers ended while they ran it; it runs alone from now on", entry.delivery.origin, lost)
                else:
                    entry.stage = Stage.ADMITTED
            case Busy(retry_after):
                entry.token = 0
                self._hold([entry], "another worker holds its claim", at_most=retry_after)
                if not entry.elsewhere:
                    entry.elsewhere = True
                    self._worker.record(self._event(EventCode.IN_FLIGHT_ELSEWHERE, entry))
            case AlreadyDone():
                entry.token = 0
                entry.rule(Done() if entry.succeeded else Duplicate())
            case Stale():
                entry.token = 0
                entry.rule(Done() if entry.succeeded else Duplicate(stale=True))

    # -- execute: user code; a failure becomes a disposition here and only here

    async def _execute(self, entries: Sequence[Entry]) -> BaseException | None:
        ready = [entry for entry in entries if entry.stage is Stage.ADMITTED]
        if not ready:
            return None
        run, now = Run(), self._worker.monotonic()
        for entry in ready:
            entry.run, entry.started_at, entry.exec_id = run, now, next(self._exec_ids)
            if entry.token:
                self._worker.record(
                    self._event(EventCode.CLAIMED, entry, lost=entry.lost, took_unreleased=entry.took_unreleased, exec_id=entry.exec_id)
                )
        stops: list[BaseException] = []
        handle = self._handle_batch if self.agent.kind == "batch" else self._handle_messages
        run.task = asyncio.create_task(handle(ready, run, stops), name=f"ackwise handler {self.agent.name}")
        await self._wait_for_handler(run.task, ready)
        for entry in ready:
            entry.run = None
            if entry.stage is Stage.ADMITTED:
                self._give_up(entry, stopped=bool(stops))
        return stops[0] if stops else None

    async def _handle_batch(self, ready: Sequence[Entry], run: Run, stops: list[BaseException]) -> None:
        batch: Batch[Any] = Batch([cast(Message[Any], entry.message) for entry in ready])
        call = cast(Callable[[Batch[Any]], Awaitable[object]], self.agent.call)
        result = await self._outcome(call, batch, run)
        if isinstance(result, Raised) and isinstance(result.error, STOPS):
            stops.append(result.error)
        elif result is not None:
            self._rule(ready, batch, result)
        else:  # called off: what it ruled on single messages stands
            for index, entry in enumerate(ready):
                if (ruling := batch.ruling(index)) is not None:
                    self._decide(entry, ruling)

    async def _handle_messages(self, ready: Sequence[Entry], run: Run, stops: list[BaseException]) -> None:
        call = cast(Callable[[Message[Any]], Awaitable[object]], self.agent.call)
        for entry in ready:
            message = cast(Message[Any], entry.message)
            entry.started_at = self._worker.monotonic()
            result = await self._outcome(call, message, run)
            if result is None:
                return
            if isinstance(result, Raised) and isinstance(result.error, STOPS):
                stops.append(result.error)
                return
            self._rule([entry], Batch([message]), result)
            if run.called_off:
                return

    async def _outcome(self, call: Callable[[Any], Awaitable[object]], argument: object, run: Run) -> Returned | Raised | None:
        """What the handler did; `None` if it was called off before it came to an end."""
        try:
            return Returned(await call(argument))
        except asyncio.CancelledError as error:
            return None if run.called_off else Raised(error)
        except BaseException as error:  # user code: whatever it raises is a ruling, or stops the app
            return Raised(error)

    def _rule(self, ready: Sequence[Entry], batch: Batch[Any], result: Returned | Raised) -> None:
        error = result.error if isinstance(result, Raised) else None
        if error is not None:
            log.warning("handler %s raised %s on %d messages from %s", self.agent.name, type(error).__name__, len(ready), ready[0].delivery.origin)
        dispositions = rule(batch, result, handler=self.agent.name, keep_ack_index_on_error=self.agent.keep_ack_index_on_error)
        for index, (entry, disposition) in enumerate(zip(ready, dispositions, strict=True)):
            self._decide(entry, disposition, None if batch.ruling(index) is not None else error)

    def _decide(self, entry: Entry, disposition: Disposition, error: BaseException | None = None) -> None:
        """Give `entry` its fate: a message that shall come later is sent back, or dead if it came too often."""
        match disposition:
            case Done():
                entry.succeeded = True
                if entry.key is not None and self._leases is not None:
                    self._leases.remember_success(entry.key.id)
            case Later(failure=failure):
                entry.error = failure.error if failure is not None else "CONSUME_LATER"
                try:
                    decision = self._worker.later.decide(disposition, entry.delivery.attempt - 1, error)
                except Exception as broken:  # a retry policy may be the user's: the delay levels stand in for it
                    log.exception("the retry policy raised %s; %s comes back by delay level", type(broken).__name__, entry.delivery.origin)
                    decision = self._worker.later.by_level(entry.delivery.attempt - 1)
                if isinstance(decision, SendBack):
                    entry.send_back = decision
                else:
                    disposition = decision
            case Dead(reason, failure):
                entry.error = failure.error if failure is not None else reason
            case Duplicate():
                pass
        entry.rule(disposition)

    def _give_up(self, entry: Entry, *, stopped: bool) -> None:
        """The handler ended without a decision on `entry`: it comes up again, with a claim of its own."""
        if self._leases is not None and entry.token:
            if entry.claim_lost:
                self._worker.record(self._event(EventCode.CLAIM_LOST, entry, exec_id=entry.exec_id))
            if stopped:
                self._leases.drop(entry)  # not released, so that it counts as lost
            else:
                self._leases.give_back(entry)
        entry.forget_claim()
        entry.hold(self._worker.monotonic(), "its handler was called off")

    async def _wait_for_handler(self, task: asyncio.Task[None], ready: Sequence[Entry]) -> None:
        waited = 0.0
        try:
            while not (await asyncio.wait({task}, timeout=HANG_WARNING))[0]:
                waited += HANG_WARNING
                log.warning(
                    "handler %s has been running for %.0f s on %d messages from %s; its partition waits, nothing is lost",
                    self.agent.name, waited, len(ready), ready[0].delivery.origin,
                )  # fmt: skip
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.cancelled():
            task.result()

    def _follow(self, entries: Sequence[Entry]) -> None:
        """Duplicates inside a batch share their leader's fate: settled with it, no second copy; held with it."""
        for entry in entries:
            leader = entry.leader
            if leader is None or entry.stage is not Stage.FETCHED:
                continue
            if leader.disposition is None:
                entry.leader = None
                entry.hold(leader.not_before, leader.why)
            else:
                stale = isinstance(leader.disposition, Duplicate) and leader.disposition.stale
                entry.rule(Duplicate(stale, leader=str(leader.delivery.origin)))

    # -- settle: publish copies, make events durable, tell the store

    async def _settle(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        ruled = [entry for entry in entries if Stage.RULED <= entry.stage < Stage.SETTLED]
        await self._confirm(ruled)
        await self._publish(ruled, assignment)
        await self._record(ruled)
        await self._tell(ruled)

    async def _confirm(self, ruled: Sequence[Entry]) -> None:
        """Past the local deadline only a renewed claim may publish; a lost one is claimed anew."""
        if self._leases is None:
            return
        doubtful = [entry for entry in ruled if entry.stage is Stage.RULED and entry.token and _needs_copy(entry) and self._leases.expired(entry)]
        if not doubtful:
            return
        try:
            lost = await self._leases.renew(doubtful)
        except StoreUnavailable as error:
            self._hold(doubtful, "its lease could not be renewed", error)
            for entry in doubtful:
                entry.claim_lost = True  # keeps it from being published in this pass
            return
        for entry in lost:
            self._worker.record(self._event(EventCode.CLAIM_LOST, entry, exec_id=entry.exec_id))
            self._leases.drop(entry)
            entry.forget_claim()
            entry.hold(self._worker.monotonic(), "its claim was lost")

    async def _publish(self, ruled: Sequence[Entry], assignment: Assignment) -> None:
        outgoing = []
        for entry in ruled:
            if entry.stage is not Stage.RULED:
                continue
            if not _needs_copy(entry):
                entry.stage = Stage.PUBLISHED
            elif assignment.cut_off:
                self._abandon(entry)
            elif not entry.claim_lost:
                outgoing.append(entry)
        while outgoing:
            for entry in outgoing:
                entry.copy = entry.copy or self._copy(entry)
            answers = await self._worker.publisher.publish([entry.copy for entry in outgoing if entry.copy is not None])
            refused = []
            for entry, answer in zip(outgoing, answers, strict=True):
                if answer is None:
                    entry.stage, entry.tries = Stage.PUBLISHED, 0
                elif isinstance(answer, PublishRefused):
                    if self._shrink(entry, answer):
                        refused.append(entry)
                else:
                    self._hold([entry], "its copy is not acknowledged", answer, wait=PUBLISH_AGAIN)
            outgoing = refused

    def _shrink(self, entry: Entry, refusal: PublishRefused) -> bool:
        """A copy that is refused for good becomes a dead letter, and that is cut until it fits."""
        if isinstance(entry.disposition, Dead):
            smaller = None if entry.copy is None else shrink(entry.copy)
        else:
            entry.disposition = Dead(Reason.TOO_LARGE, Failure.of(refusal))
            entry.send_back = None
            smaller = self._copy(entry)
        if smaller is None:
            entry.copy = None
            self._hold([entry], "its dead letter is refused", refusal, wait=PUBLISH_AGAIN)
            return False
        entry.copy = smaller
        return True

    def _copy(self, entry: Entry) -> Any:
        delivery, worker, now_ms = entry.delivery, self._worker, int(self._worker.wall() * 1000)
        where = {"partition": delivery.partition, "group": worker.group, "handler": self.agent.name, "now_ms": now_ms}
        if isinstance(entry.disposition, Dead):
            dead = entry.disposition
            return dead_letter(delivery, topic=worker.dead_letter_topic, reason=dead.reason, failure=dead.failure, **where)  # type: ignore[arg-type]  # the mapping holds an int, two strings and an int
        back = cast(SendBack, entry.send_back)
        due = now_ms + round((back.delay + worker.clock_skew) * 1000) if back.delay > 0 else now_ms
        topic = worker.retry_topic if back.delay <= 0 else worker.delay_topics[max(back.level, 1) - 1]
        return retry_copy(delivery, topic=topic, due=due, reason=entry.error or "", **where)  # type: ignore[arg-type]  # as above

    def _abandon(self, entry: Entry) -> None:
        """After the cut-off: the failure is told, the claim given back, nothing else."""
        self._worker.record(self._event(EventCode.FAILED, entry, error=entry.error, exec_id=entry.exec_id))
        if self._leases is not None:
            self._leases.give_back(entry)
        entry.forget_claim()
        entry.hold(self._worker.monotonic(), "its partition was revoked")

    async def _record(self, ruled: Sequence[Entry]) -> None:
        published = [entry for entry in ruled if entry.stage is Stage.PUBLISHED]
        if not published:
            return
        sink = self._worker.sink
        if sink is not None:
            for entry in published:
                if not entry.recorded:
                    entry.recorded = True
                    for event in self._outcome_events(entry):
                        sink.record(event)
            try:
                await sink.flush()
            except EventLogUnavailable as error:
                self._hold(published, "the event log is not durable", error)
                return
        for entry in published:
            entry.stage = Stage.RECORDED

    def _outcome_events(self, entry: Entry) -> list[Event]:
        duration = round((self._worker.monotonic() - entry.started_at) * 1e6) if entry.exec_id is not None else None
        events = []
        if entry.exec_id is not None and isinstance(entry.disposition, Later | Dead):
            events.append(self._event(EventCode.FAILED, entry, error=entry.error, exec_id=entry.exec_id, duration_us=duration))
        match entry.disposition:
            case Done():
                events.append(self._event(EventCode.SUCCEEDED, entry, exec_id=entry.exec_id, duration_us=duration))
            case Duplicate(stale, leader):
                attrs = None if leader is None else json.dumps({"leader": leader})
                events.append(self._event(EventCode.STALE if stale else EventCode.DUP_SUPPRESSED, entry, attrs=attrs))
            case Later():
                back = cast(SendBack, entry.send_back)
                due = round((self._worker.wall() + back.delay) * 1000)
                events.append(self._event(EventCode.SENT_BACK, entry, level=back.level, due_ms=due, error=entry.error))
            case Dead(reason):
                events.append(self._event(EventCode.DEAD_LETTERED, entry, error=reason))
            case None:
                pass
        return events

    async def _tell(self, ruled: Sequence[Entry]) -> None:
        """Complete and release; only an answer settles what was completed, a release that fails holds nothing."""
        recorded = [entry for entry in ruled if entry.stage is Stage.RECORDED]
        completes: list[tuple[Entry, Complete]] = []
        releases: list[tuple[Entry, Release]] = []
        for entry in recorded:
            if entry.key is None or not entry.token:
                continue
            match entry.disposition:
                case Later():
                    releases.append((entry, Release(entry.key, entry.token, sent_back=entry.delivery.attempt + 1)))
                case Dead():
                    completes.append((entry, Complete(entry.key, entry.token, Outcome.DEAD)))
                case _:
                    completes.append((entry, Complete(entry.key, entry.token, Outcome.OK)))
        held: set[int] = set()
        if self._leases is not None and (completes or releases):
            try:
                result = await self._leases.exchange(completes=[c for _, c in completes], releases=[r for _, r in releases])
            except StoreUnavailable as error:
                self._hold([entry for entry, _ in completes], "done, but the store does not know it yet", error)
                held = {id(entry) for entry, _ in completes}
            else:
                for (entry, _), ack in zip(completes, result.completes, strict=True):
                    if ack is Ack.LOST and not isinstance(entry.disposition, Dead):
                        self._claim_again(entry, self._leases)
                        held.add(id(entry))
                    elif ack is Ack.RESTORED:
                        log.error("%s: the store had forgotten a claim that was held; the record was written again", entry.delivery.origin)
        for entry in recorded:
            if id(entry) not in held:
                if self._leases is not None:
                    self._leases.drop(entry)
                entry.stage = Stage.SETTLED
        for entry in recorded:
            if entry.leader is not None and entry.stage is Stage.SETTLED and entry.leader.stage is not Stage.SETTLED:
                entry.stage = Stage.RECORDED
                entry.hold(entry.leader.not_before, entry.leader.why)

    def _claim_again(self, entry: Entry, leases: Leases) -> None:
        """It succeeded here and somebody else owns the record: it is claimed again, to be completed, never to be run."""
        self._worker.record(self._event(EventCode.CLAIM_LOST, entry, exec_id=entry.exec_id))
        leases.drop(entry)
        recorded = entry.recorded
        entry.forget_claim()
        entry.recorded = recorded
        entry.hold(self._worker.monotonic(), "done, but its claim was lost")

    # -- common

    def _hold(self, entries: Sequence[Entry], why: str, error: Exception | None = None, *, at_most: float | None = None, wait: float | None = None) -> None:
        """Back-off: 0.1 s doubling to 5 s, at most `at_most`, or exactly `wait` seconds."""
        now = self._worker.monotonic()
        for entry in entries:
            delay = min(5.0, 0.1 * 2 ** min(entry.tries, 10)) if wait is None else wait
            entry.tries += 1
            entry.hold(now + (delay if at_most is None else min(delay, max(at_most, 0.001))), why)
        if error is not None and entries:
            log.warning(
                "partition %s/%d: %d messages held, %s (%s); nothing committed, next try in %.1f s",
                entries[0].delivery.topic, entries[0].delivery.partition, len(entries), why, error, entries[0].not_before - now,
            )  # fmt: skip

    def _event(self, code: EventCode, entry: Entry, **fields: Any) -> Event:
        delivery = entry.delivery
        origin = delivery.origin
        physical = {} if delivery.at_origin else {
            "phys_topic": delivery.topic, "phys_partition": delivery.partition, "phys_offset": delivery.offset,
        }  # fmt: skip
        return Event(
            code, origin.topic, origin.partition, origin.offset, self.agent.name, delivery.attempt,
            dedup_hash=entry.dedup_hash, dedup_epoch=None if self._dedup is None else self._dedup.epoch,
            record_ts_ms=origin.timestamp_ms, **physical, **fields,
        )  # fmt: skip


def _needs_copy(entry: Entry) -> bool:
    return isinstance(entry.disposition, Later | Dead)


class _Beside:
    """The turn of an ordinary batch."""

    def __init__(self, isolation: Isolation) -> None:
        self._turn = isolation.shared()

    async def __aenter__(self) -> bool:
        await self._turn.__aenter__()
        return True

    async def __aexit__(self, *exc: Any) -> None:
        await self._turn.__aexit__(*exc)


class _Alone:
    """The turn of a message that runs alone; `False` if the worker did not come to rest."""

    def __init__(self, isolation: Isolation, lease: float, entries: Sequence[Entry], clock: Callable[[], float]) -> None:
        self._turn = isolation.exclusive(lease)
        self._again = lease
        self._entries = entries
        self._clock = clock

    async def __aenter__(self) -> bool:
        idle = await self._turn.__aenter__()
        if not idle:
            for entry in self._entries:
                if entry.stage is Stage.FETCHED:
                    entry.hold(self._clock() + self._again, "it runs alone, and the worker is not idle")
        return idle

    async def __aexit__(self, *exc: Any) -> None:
        await self._turn.__aexit__(*exc)
