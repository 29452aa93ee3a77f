"""Settlement, the last phase: publishes copies, makes events durable, updates the store. A step that fails is repeated alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Protocol, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import OUR_REASONS, Dead, Done, Duplicate, Failure, Later, Reason
from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.fate import ending
from ackwise.middleware.leases import Leases
from ackwise.middleware.log import Log
from ackwise.middleware.policies import Dedup
from ackwise.middleware.retry import SendBack
from ackwise.middleware.store import Ack, Complete, Release
from ackwise.middleware.wire import Copy, dead_letter, retry_copy, shrink
from ackwise.middleware.worker import Worker

__all__ = ["Assignment", "Settlement"]

log = Log()

#: Seconds until a publish is repeated. RocketMQ: `submitConsumeRequestLater`.
PUBLISH_AGAIN = 5.0


#: The dispositions of what is published: a copy or a dead letter.
_COPIED: Final = (Later, Dead)

#: The stages that settling goes through.
_UNDER_WAY: Final = (Stage.RULED, Stage.PUBLISHED, Stage.RECORDED)


class Assignment(Protocol):
    """What the pipeline asks of the partition that a batch came from."""

    @property
    def cut_off(self) -> bool:
        """The partition is no longer ours: nothing may be begun or published for it."""
        ...

    @property
    def is_stopping(self) -> bool:
        """It takes nothing new, and what has begun comes to its end."""
        ...

    def pass_settled(self, entries: Sequence[Entry]) -> None:
        """Those of `entries` that are SETTLED may move the watermark."""
        ...


#: What the outcome of a message says that ran without a claim, since the store was down.
_UNPROTECTED: Final = json.dumps({"store": "down"})


class Settlement:
    """The last phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases

    async def __call__(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        """Take everything that is RULED as far as it goes: SETTLED, or held at the step that failed."""
        ruled = [entry for entry in entries if entry.stage in _UNDER_WAY]
        await self._confirm(ruled)
        await self.publish(ruled, assignment)
        await self._record_outcomes(ruled)
        await self._update_store(ruled)

    async def _confirm(self, ruled: Sequence[Entry]) -> None:
        """Past the local deadline only a renewed claim may publish; a lost one is claimed anew."""
        if self._leases is None:
            return
        doubtful = [
            entry
            for entry in ruled
            if isinstance(entry.disposition, _COPIED)
            and entry.stage is Stage.RULED
            and entry.token
            and not entry.unprotected
            and self._leases.expired(entry)
        ]
        if not doubtful:
            return
        try:
            lost = await self._leases.renew(doubtful)
        except StoreUnavailable as error:
            self._worker.postpone(doubtful, "its lease could not be renewed", error)
            for entry in doubtful:
                entry.claim_lost = True  # keeps it from being published in this pass
            return
        for entry in lost:
            self._worker.record(self._worker.event(EventCode.CLAIM_LOST, self._agent.name, entry, exec_id=entry.exec_id))
            self._leases.drop(entry)
            entry.forget_claim()
            entry.postpone(self._worker.monotonic(), "its claim was lost")

    async def publish(self, ruled: Sequence[Entry], assignment: Assignment) -> None:
        """Publish what needs a copy; what needs none, or is acknowledged, is PUBLISHED, the rest is held."""
        outgoing, passed = [], []
        for entry in ruled:
            if entry.stage is not Stage.RULED:
                continue
            if not isinstance(entry.disposition, _COPIED):
                entry.stage = Stage.PUBLISHED
                passed.append(entry)
            elif assignment.cut_off or not entry.claim_lost:
                outgoing.append(entry)
        self._log_suppressed(passed)
        while outgoing:
            if assignment.cut_off:  # looked at for each round: a shorter one is sent after the answer to the first
                for entry in outgoing:
                    self._abandon(entry)
                return
            for entry in outgoing:
                entry.copy = entry.copy or self._copy(entry)
            answers = await self._worker.publisher.publish([entry.copy for entry in outgoing if entry.copy is not None])
            refused, unanswered = [], []
            for entry, answer in zip(outgoing, answers, strict=True):
                if answer is None:
                    entry.stage, entry.tries = Stage.PUBLISHED, 0
                elif isinstance(answer, PublishRefused):
                    if self._shrink(entry, answer):
                        refused.append(entry)
                else:
                    unanswered.append((entry, answer))
            if unanswered:
                self._worker.postpone(
                    [entry for entry, _ in unanswered], "copies are not acknowledged", unanswered[0][1], wait=PUBLISH_AGAIN
                )
            self._log_dead_letters([entry for entry in outgoing if entry.stage is Stage.PUBLISHED])
            outgoing = refused

    def _log_suppressed(self, passed: Sequence[Entry]) -> None:
        """One line for what is not run since its key died before: whoever sent a dead letter again by hand looks for it here."""
        suppressed = [entry for entry in passed if isinstance(entry.disposition, Duplicate) and entry.disposition.dead]
        if suppressed:
            log.warning(
                "messages are not run, their keys are those of dead letters",
                handler=self._agent.name,
                messages=len(suppressed),
                topic=suppressed[0].delivery.origin.topic,
                partition=suppressed[0].delivery.origin.partition,
                offset=suppressed[0].delivery.origin.offset,
            )

    def _log_dead_letters(self, published: Sequence[Entry]) -> None:
        """One line for the dead letters of each reason; a reason that the handler gave is the user's text and stays on the letter."""
        by_reason: dict[str, list[tuple[Entry, Failure | None]]] = {}
        for entry in published:
            if isinstance(entry.disposition, Dead):
                reason = entry.disposition.reason if entry.disposition.reason in OUR_REASONS else "given by the handler"
                by_reason.setdefault(reason, []).append((entry, entry.disposition.failure))
        for reason, dead in by_reason.items():
            first, failure = dead[0]
            log.warning(
                "messages are dead letters",
                handler=self._agent.name,
                reason=reason,
                messages=len(dead),
                topic=first.delivery.origin.topic,
                partition=first.delivery.origin.partition,
                offset=first.delivery.origin.offset,
                attempt=first.delivery.attempt,
                dead_letters=self._worker.dead_letter_topic,
                error=None if failure is None else failure.error,
                at=None if failure is None else failure.at,
            )

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
            self._worker.postpone([entry], "its dead letter is refused", refusal, wait=PUBLISH_AGAIN)
            return False
        entry.copy = smaller
        return True

    def _copy(self, entry: Entry) -> Copy:
        delivery, worker, now_ms = entry.delivery, self._worker, int(self._worker.wall() * 1000)
        if isinstance(entry.disposition, Dead):
            dead = entry.disposition
            return dead_letter(
                delivery, topic=worker.dead_letter_topic, partition=delivery.partition, group=worker.group, handler=self._agent.name,
                now_ms=now_ms, reason=dead.reason, failure=dead.failure,
            )  # fmt: skip
        back = cast(SendBack, entry.send_back)
        due = now_ms + round((back.delay + worker.clock_skew) * 1000) if back.delay > 0 else now_ms
        topic = worker.delay_topics[max(back.level, 1) - 1] if back.delay > 0 else worker.retry_topic
        return retry_copy(
            delivery, topic=topic, partition=delivery.partition, group=worker.group, handler=self._agent.name,
            due=due, now_ms=now_ms, reason=entry.error or "",
        )  # fmt: skip

    def _abandon(self, entry: Entry) -> None:
        """After the cut-off: the failure is told, the claim given back, nothing else."""
        self._worker.record(self._worker.event(EventCode.FAILED, self._agent.name, entry, error=entry.error, exec_id=entry.exec_id))
        if self._leases is not None:
            self._leases.give_back(entry)
        entry.forget_claim()
        entry.postpone(self._worker.monotonic(), "its partition was revoked")

    async def _record_outcomes(self, ruled: Sequence[Entry]) -> None:
        published = [entry for entry in ruled if entry.stage is Stage.PUBLISHED]
        if not published:
            return
        sink = self._worker.sink
        if sink is not None:
            now = self._worker.monotonic()
            for entry in published:
                if not entry.recorded:
                    entry.recorded = True
                    for event in self._outcome_events(entry, now):
                        sink.record(event)
            try:
                await self._worker.make_durable()
            except EventLogUnavailable as error:
                self._worker.postpone(published, "the event log is not durable", error)
                return
        for entry in published:
            entry.stage = Stage.RECORDED

    def _outcome_events(self, entry: Entry, now: float) -> list[Event]:
        duration = round((now - entry.started_at) * 1e6) if entry.exec_id is not None else None
        how = _UNPROTECTED if entry.unprotected else None
        events = []
        if entry.exec_id is not None and isinstance(entry.disposition, _COPIED):
            events.append(
                self._worker.event(
                    EventCode.FAILED, self._agent.name, entry, error=entry.error, exec_id=entry.exec_id, duration_us=duration, attrs=how
                )
            )
        match entry.disposition:
            case Done():
                events.append(
                    self._worker.event(EventCode.SUCCEEDED, self._agent.name, entry, exec_id=entry.exec_id, duration_us=duration, attrs=how)
                )
            case Duplicate(stale, leader, dead):
                told = ({} if leader is None else {"leader": leader}) | ({"outcome": "dead"} if dead else {})
                attrs = json.dumps(told) if told else None
                events.append(
                    self._worker.event(EventCode.STALE if stale else EventCode.DUP_SUPPRESSED, self._agent.name, entry, attrs=attrs)
                )
            case Later():
                back = cast(SendBack, entry.send_back)
                due = round((self._worker.wall() + back.delay) * 1000)
                events.append(
                    self._worker.event(EventCode.SENT_BACK, self._agent.name, entry, level=back.level, due_ms=due, error=entry.error)
                )
            case Dead(reason):
                events.append(self._worker.event(EventCode.DEAD_LETTERED, self._agent.name, entry, error=reason))
            case None:
                pass
        return events

    async def _update_store(self, ruled: Sequence[Entry]) -> None:
        """Complete and release; only an answer settles what was completed, a release that fails holds nothing."""
        recorded = [entry for entry in ruled if entry.stage is Stage.RECORDED]
        completing: list[Entry] = []
        completes: list[Complete] = []
        releases: list[Release] = []
        for entry in recorded:
            if entry.key is None or not entry.token or self._leases is None:
                continue
            if entry.unprotected:
                self._leases.give_back(entry)
                continue
            end = ending(entry, entry.key)
            if isinstance(end, Release):
                releases.append(end)
            else:
                completing.append(entry)
                completes.append(end)
        held: Sequence[Entry] = ()
        if self._leases is not None and (completes or releases):
            try:
                result = await self._leases.exchange(completes=completes, releases=releases)
            except StoreUnavailable as error:
                held = self._held_by_outage(completing, completes, self._leases, error)
            else:
                answered = list(zip(completing, result.completes, strict=True))
                self._log_restored([entry for entry, ack in answered if ack is Ack.RESTORED])
                held = [entry for entry, ack in answered if ack is Ack.LOST and not isinstance(entry.disposition, Dead)]
                for entry in held:
                    self._claim_again(entry, self._leases)
        unsettled = set(held)
        settled = [entry for entry in recorded if entry not in unsettled] if unsettled else recorded
        if self._leases is not None:
            self._leases.drop(*settled)
        for entry in settled:
            entry.stage = Stage.SETTLED
        for entry in recorded:
            if entry.leader is not None and entry.stage is Stage.SETTLED and entry.leader.stage is not Stage.SETTLED:
                entry.stage = Stage.RECORDED
                entry.postpone(entry.leader.not_before, entry.leader.why)

    def _held_by_outage(
        self, completing: Sequence[Entry], completes: Sequence[Complete], leases: Leases, error: StoreUnavailable
    ) -> Sequence[Entry]:
        """The store does not know that they are done: they are held until it does, unless nothing is to wait for the store."""
        if isinstance(self._worker.dedup, Dedup) and self._worker.dedup.on_store_down == "fail_open":
            for complete in completes:
                leases.mark_later(complete)
            return ()
        self._worker.postpone(completing, "done, but the store does not know it yet", error)
        return completing

    def _log_restored(self, restored: Sequence[Entry]) -> None:
        if restored:
            log.error(
                "the store had forgotten claims that were held, their records are written again",
                handler=self._agent.name,
                messages=len(restored),
                topic=restored[0].delivery.origin.topic,
                partition=restored[0].delivery.origin.partition,
                offset=restored[0].delivery.origin.offset,
            )

    def _claim_again(self, entry: Entry, leases: Leases) -> None:
        """It succeeded here and somebody else owns the record: it is claimed again, to be completed, never to be run."""
        self._worker.record(self._worker.event(EventCode.CLAIM_LOST, self._agent.name, entry, exec_id=entry.exec_id))
        leases.drop(entry)
        recorded = entry.recorded
        entry.forget_claim()
        entry.recorded = recorded
        entry.postpone(self._worker.monotonic(), "done, but its claim was lost")
