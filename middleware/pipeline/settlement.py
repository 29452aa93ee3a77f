"""Settlement, the last phase: publishes copies, makes events durable, updates the store. A step that fails is repeated alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, Final, Protocol, cast

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.log import Log
from ackwise.middleware.message.disposition import OUR_REASONS, Dead, Delayed, Done, Dropped, Duplicate, Failure, Reason, Suspended
from ackwise.middleware.message.wire import Copy, dead_letter, retry_copy, shrink
from ackwise.middleware.pipeline.publishing import Sending
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.policies.retry import SendBack
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.redelivery import batch_limit, outcome_of, sent_back_of
from ackwise.middleware.runs.run import Run, Stage, count, pick
from ackwise.middleware.storage.claimstore import Ack, Column, Outcome

log = Log()

_first = attrgetter("first")

#: Seconds until a publish is repeated. RocketMQ: `submitConsumeRequestLater`.
PUBLISH_AGAIN = 5.0


#: Seconds between two lines about messages that are not run: a topic that is read again may have any number of them.
_QUIET: Final = 60.0

#: The dispositions of what is published: a copy or a dead letter.
_COPIED: Final = (Delayed, Dead)

#: The dispositions of what ran and failed.
_FAILED: Final = (Delayed, Dead, Dropped)

#: The stages that settling goes through.
_UNDER_WAY: Final = (Stage.RULED, Stage.PUBLISHED, Stage.RECORDED)


class Assignment(Protocol):
    """What the pipeline asks of the partition that a batch came from."""

    @property
    def cut_off(self) -> bool:
        """The partition is no longer ours: nothing may be started or published for it."""
        ...

    @property
    def is_stopping(self) -> bool:
        """It takes nothing new, and what has started ends."""
        ...

    def pass_settled(self, runs: Sequence[Run]) -> None:
        """Those of `runs` that are SETTLED may move the watermark."""
        ...


#: What the outcome of a message says: that it ran without a claim, since the store was down, and that it ran out of order.
_UNPROTECTED: Final = {"store": "down"}
_OUT_OF_ORDER: Final = {"out_of_order": True}

#: Logged for a copy that no attempt is charged for.
_UNCHARGED: Final = json.dumps({"charged": False})


class Settlement:
    """The last phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases
        self._send = Sending(agent, worker)
        self._suppressed = 0  #: messages that were not run since their keys are dead, and of which the log has not told
        self._quiet_until = 0.0  #: monotonic seconds

    async def __call__(self, runs: list[Run], assignment: Assignment, *, due: float | None = None) -> None:
        """Take everything that is RULED as far as it goes: SETTLED, or held at the step that failed.

        `due`: nothing that is held for longer (monotonic seconds).
        """
        if suspended := [run for run in runs if isinstance(run.disposition, Suspended)]:
            self._suspend(suspended)
        ruled = [run for run in runs if run.stage in _UNDER_WAY and (due is None or run.not_before <= due)]
        ruled.sort(key=_first)  # what fell out of a run stands behind it; dead letters go out in the order of their offsets
        if ruled:
            if self._worker.dropping is not None and not assignment.cut_off:  # else it is delivered again, and may do better
                self._worker.dropping.drop(self._agent.name, ruled, self._worker.text_of)
            if any(run.publishes or isinstance(run.disposition, _COPIED) for run in ruled):
                await self._confirm(ruled)
            await self.publish(ruled, assignment)
            await self._record_outcomes(ruled)
            await self._update_store(runs, ruled)

    def _suspend(self, suspended: Sequence[Run]) -> None:
        """A message that failed in place is reported as failed and its claim is released; it is fetched again when it is due."""
        now, wall = self._worker.monotonic(), self._worker.wall()
        for run in suspended:
            burials = self._worker.flow.burials
            delay = 0.0 if burials and burials.places(run) else cast(Suspended, run.disposition).delay
            duration = round((now - run.started_at) * 1e6) if run.exec_ids is not None else None
            due_ms = round((wall + delay) * 1000)
            attrs = json.dumps({"in_place": run.in_place + 1, "due": due_ms} | (_OUT_OF_ORDER if run.out_of_order else {}))
            self._worker.record(
                EventCode.FAILED, self._agent.name, run, with_exec_id=True, error=run.error, duration_us=duration, attrs=attrs
            )
            if self._leases is not None:
                self._leases.give_back(run)
            run.suspend(now + delay, due_ms)
            run.batch_limit = batch_limit(run, self._agent.max_batch, self._worker.later_of(self._agent), self._agent.in_place)

    async def _confirm(self, ruled: Sequence[Run]) -> None:
        """Past the local deadline, or after a pause, only a renewed claim may publish; a lost one is claimed again."""
        if self._leases is None:
            return
        doubtful = [
            run
            for run in ruled
            if (run.publishes or isinstance(run.disposition, _COPIED))
            and run.stage is Stage.RULED
            and run.claims.tokens
            and not run.claims.unprotected
            and self._leases.doubtful(run)
        ]
        if not doubtful:
            return
        try:
            lost = await self._leases.renew(doubtful)
        except StoreUnavailable as error:
            self._worker.postpone(doubtful, "its lease could not be renewed", error)
            for run in doubtful:
                run.claims.lost = set(run.claims.tokens or ())  # keeps it from being published in this pass
            return
        for run in lost:
            self._worker.record(EventCode.CLAIM_LOST, self._agent.name, run, with_exec_id=True)
            self._leases.drop(run)
            run.forget_claim()
            run.postpone(self._worker.monotonic(), "its claim was lost")

    async def publish(self, ruled: Sequence[Run], assignment: Assignment) -> None:
        """Publish copies, and what handlers publish; what needs none, or has all acknowledged, is PUBLISHED, the rest is held."""
        outgoing, passed = [], []
        for run in ruled:
            if run.stage is not Stage.RULED or isinstance(run.disposition, Suspended):
                continue
            if not run.publishes and not isinstance(run.disposition, _COPIED):
                run.stage = Stage.PUBLISHED
                passed.append(run)
            elif assignment.cut_off or not run.claim_lost:
                outgoing.append(run)
        if suppressed := [run for run in passed if isinstance(run.disposition, Duplicate) and run.disposition.dead]:
            self._log_suppressed(suppressed)
        while outgoing:
            if assignment.cut_off:  # looked at for each round: a shorter one is sent after the answer to the first
                for run in outgoing:
                    self._abandon(run)
                return
            if publishing := [run for run in outgoing if run.publishes]:
                await self._send(publishing)  # a copy is published of those that have failed by that
                outgoing = [run for run in outgoing if run.stage is Stage.RULED and isinstance(run.disposition, _COPIED)]
                continue
            outgoing = await self._publish_copies(outgoing)

    async def _publish_copies(self, outgoing: Sequence[Run]) -> list[Run]:
        """Publish a copy of each; returns those whose copy is another one now, since it was refused."""
        for run in outgoing:
            run.copy = run.copy or self._copy(run)
        answers = await self._worker.publisher.publish([run.copy for run in outgoing if run.copy is not None])
        refused, unanswered = [], []
        for run, answer in zip(outgoing, answers, strict=True):
            if answer is None:
                run.stage, run.tries = Stage.PUBLISHED, 0
            elif isinstance(answer, PublishRefused):
                if self._shrink(run, answer):
                    refused.append(run)
            else:
                unanswered.append((run, answer))
        if unanswered:
            self._worker.postpone([run for run, _ in unanswered], "copies are not acknowledged", unanswered[0][1], wait=PUBLISH_AGAIN)
        self._log_dead_letters([run for run in outgoing if run.stage is Stage.PUBLISHED])
        return refused

    def _log_suppressed(self, suppressed: Sequence[Run]) -> None:
        """Log once a minute the messages that do not run since their key is that of a dead letter."""
        self._suppressed += count(suppressed)
        now = self._worker.monotonic()
        if now >= self._quiet_until:
            messages, self._suppressed, self._quiet_until = self._suppressed, 0, now + _QUIET
            log.warning(
                "messages with keys of dead letters skipped",
                handler=self._agent.name,
                messages=messages,
                topic=suppressed[0].origin.topic,
                partition=suppressed[0].origin.partition,
                offset=suppressed[0].origin.offset,
            )

    def _log_dead_letters(self, published: Sequence[Run]) -> None:
        """One line for the dead letters of each reason; a reason that the handler gave is the user's text and stays on the letter."""
        by_reason: dict[str, list[tuple[Run, Failure | None]]] = {}
        for run in published:
            if isinstance(run.disposition, Dead):
                reason = run.disposition.reason if run.disposition.reason in OUR_REASONS else "given by the handler"
                by_reason.setdefault(reason, []).append((run, run.disposition.failure))
        for reason, dead in by_reason.items():
            first, failure = dead[0]
            log.warning(
                "messages are dead letters",
                handler=self._agent.name,
                reason=reason,
                messages=len(dead),
                topic=first.origin.topic,
                partition=first.origin.partition,
                offset=first.origin.offset,
                attempt=first.attempt,
                dead_letters=self._worker.dead_letter_topic,
                error=None if failure is None else failure.error,
                at=None if failure is None else failure.at,
                text=self._worker.text_of(failure),
            )

    def _shrink(self, run: Run, refusal: PublishRefused) -> bool:
        """A copy that is refused for good becomes a dead letter, and that is cut until it fits."""
        if isinstance(run.disposition, Dead):
            smaller = None if run.copy is None else shrink(run.copy)
        else:
            run.disposition = Dead(Reason.TOO_LARGE, Failure.of(refusal))
            run.send_back = None
            smaller = self._copy(run)
        if smaller is None:
            run.copy = None
            self._worker.postpone([run], "its dead letter is refused", refusal, wait=PUBLISH_AGAIN)
            return False
        run.copy = smaller
        return True

    def _copy(self, run: Run) -> Copy:
        delivery, worker, now_ms = run.delivery, self._worker, int(self._worker.wall() * 1000)
        if isinstance(run.disposition, Dead):
            dead = run.disposition
            return dead_letter(
                delivery, topic=worker.dead_letter_topic, partition=delivery.partition, group=worker.group, handler=self._agent.name,
                now_ms=now_ms, reason=dead.reason, failure=dead.failure, in_place=run.in_place,
            )  # fmt: skip
        back = cast(SendBack, run.send_back)
        due = now_ms + round((back.delay + worker.clock_skew) * 1000) if back.delay > 0 else now_ms
        topic = worker.delay_topic if back.delay > 0 else worker.retry_topic
        return retry_copy(
            delivery, topic=topic, partition=delivery.partition, group=worker.group, handler=self._agent.name,
            due=due, now_ms=now_ms, reason=run.error or "", charged=back.charged, waits=back.delay > 0,
        )  # fmt: skip

    def _abandon(self, run: Run) -> None:
        """After the cut-off: the failure is reported and the claim released, nothing else."""
        error = run.error or PublishUnavailable.__name__  # done, and what it publishes is not acknowledged
        self._worker.record(EventCode.FAILED, self._agent.name, run, with_exec_id=True, error=error)
        if self._leases is not None:
            self._leases.give_back(run)
        run.forget_claim()
        run.postpone(self._worker.monotonic(), "its partition was revoked")

    async def _record_outcomes(self, ruled: Sequence[Run]) -> None:
        published = [run for run in ruled if run.stage is Stage.PUBLISHED]
        if not published:
            return
        if self._worker.sink is not None:
            now = self._worker.monotonic()
            for run in published:
                if not run.recorded:
                    run.recorded = True
                    self._record_outcome(run, now)
            try:
                await self._worker.make_durable()
            except EventLogUnavailable as error:
                self._worker.postpone(published, "the event log is not durable", error)
                return
        for run in published:
            run.stage = Stage.RECORDED

    def _record_outcome(self, run: Run, now: float) -> None:
        record, handler = self._worker.record, self._agent.name
        duration = round((now - run.started_at) * 1e6) if run.exec_ids is not None else None
        how = _how(run) if run.claims.unprotected or run.out_of_order else None
        if run.exec_ids is not None and isinstance(run.disposition, _FAILED):
            record(EventCode.FAILED, handler, run, with_exec_id=True, error=run.error, duration_us=duration, attrs=how)
        match run.disposition:
            case Done():
                record(EventCode.SUCCEEDED, handler, run, with_exec_id=True, duration_us=duration, attrs=how)
            case Duplicate(stale, leader, dead, ran):
                told: dict[str, Any] = ({} if leader is None else {"leader": leader}) | ({"outcome": "dead"} if dead else {})
                if ran is not None:
                    run.exec_ids = [ran.exec_id]
                    told |= ran.attributes(str(run.origin))
                code, attrs = EventCode.STALE if stale else EventCode.DUP_SUPPRESSED, json.dumps(told) if told else None
                record(code, handler, run, with_exec_id=ran is not None, attrs=attrs)
            case Delayed():
                back = cast(SendBack, run.send_back)
                due = round((self._worker.wall() + back.delay) * 1000)
                record(
                    EventCode.SENT_BACK, handler, run, level=back.level, due_ms=due, error=run.error,
                    attrs=None if back.charged else _UNCHARGED,
                )  # fmt: skip
            case Dead(reason):
                record(EventCode.DEAD_LETTERED, handler, run, error=reason, attrs=_of_redrive(run))
            case Dropped(reason):
                record(EventCode.DROPPED, handler, run, error=reason)
            case Suspended() | None:
                pass  # it is not published, and its attempt is reported where it is suspended

    async def _update_store(self, runs: list[Run], ruled: Sequence[Run]) -> None:
        """Complete and release; only an answer settles what was completed, a release that fails holds nothing."""
        recorded = [run for run in ruled if run.stage is Stage.RECORDED]
        completing: list[tuple[Run, Outcome]] = []
        releases: list[Column] = []
        for run in recorded:
            if not run.claims.tokens or run.claims.ids is None or self._leases is None:
                continue
            if run.claims.unprotected:
                self._leases.give_back(run)
            elif (outcome := outcome_of(run)) is None:
                releases.append(run.column(sent_back=sent_back_of(run)))
            else:
                completing.append((run, outcome))
        replayed = [run for run in recorded if run.claims.base_id is not None and outcome_of(run) is Outcome.OK]
        held: list[Run] = []
        if self._leases is not None and (completing or releases or replayed):
            completes = [run.column(outcome) for run, outcome in completing] + [run.base_column() for run in replayed]
            try:
                result = await self._leases.exchange(completes=completes, releases=releases)
            except StoreUnavailable as error:
                told = dict.fromkeys([*(run for run, _ in completing), *replayed])
                held = self._held_by_outage([*told], completes, self._leases, error)
            else:
                of_claims = result.completes[: len(completing)]  # a base key is done now, whichever worker held it
                answered = [(run, answer.exceptions) for (run, _), answer in zip(completing, of_claims, strict=True)]
                if any(answers for _, answers in answered):
                    self._log_restored(answered)
                for run, answers in answered:
                    if answers:
                        held += self._claim_lost_again(runs, run, answers, self._leases)
        unsettled = set(held)
        settled = [run for run in recorded if len(run) and run not in unsettled]
        if self._leases is not None:
            self._leases.drop(*settled)
        for run in settled:
            run.stage = Stage.SETTLED
        for run in settled:
            if run.leader is not None and run.leader.stage is not Stage.SETTLED:
                run.stage = Stage.RECORDED
                run.postpone(run.leader.not_before, run.leader.why)

    def _claim_lost_again(self, runs: list[Run], run: Run, answers: Mapping[int, Ack], leases: Leases) -> list[Run]:
        """Take out what succeeded here while another worker owns the record, and claim it again; return it."""
        lost = [place for place, ack in answers.items() if ack is Ack.LOST and not isinstance(run.disposition, Dead)]
        fallen = pick(runs, run, lost)
        for single in fallen:
            self._claim_again(single, leases)
        return fallen

    def _held_by_outage(self, completing: Sequence[Run], completes: Sequence[Column], leases: Leases, error: StoreUnavailable) -> list[Run]:
        """The store does not know that they are done: they are held until it does, unless nothing is to wait for the store."""
        if isinstance(self._worker.dedup, Dedup) and self._worker.dedup.on_store_down == "fail_open":
            for complete in completes:
                leases.mark_later(complete)
            return []
        self._worker.postpone(completing, "done, but the store does not know it yet", error)
        return list(completing)

    def _log_restored(self, answered: Sequence[tuple[Run, Mapping[int, Ack]]]) -> None:
        restored = [run.origin_at(place) for run, answers in answered for place in answers if answers[place] is Ack.RESTORED]
        if restored:
            log.error(
                "store lost held claims",
                handler=self._agent.name,
                messages=len(restored),
                topic=restored[0].topic,
                partition=restored[0].partition,
                offset=restored[0].offset,
            )

    def _claim_again(self, run: Run, leases: Leases) -> None:
        """It succeeded here and another worker owns the record: it is claimed again, to be completed, never to be run."""
        self._worker.record(EventCode.CLAIM_LOST, self._agent.name, run, with_exec_id=True)
        leases.drop(run)
        recorded = run.recorded
        run.forget_claim()
        run.recorded = recorded
        run.postpone(self._worker.monotonic(), "done, but its claim was lost")


def _of_redrive(run: Run) -> str | None:
    """Return the redrive that sent a dead letter again, as JSON."""
    if len(run) > 1 or run.delivery.replay_id is None:
        return None
    return json.dumps({"redrive": run.delivery.replay_id.decode("utf-8", "replace")})


def _how(run: Run) -> str:
    """Return how it ran, by its outcome, as JSON."""
    return json.dumps((_UNPROTECTED if run.claims.unprotected else {}) | (_OUT_OF_ORDER if run.out_of_order else {}))


#: The partition whose messages the task that asks works on.
current_assignment: ContextVar[Assignment | None] = ContextVar("ackwise_assignment", default=None)


class Undecided(BaseException):
    """Raised by a call that ended without a decision. Its messages are not ruled on, no attempt is counted, they come up again."""


def check_cut_off() -> None:
    """Ask before user code is called once more for the same messages. Raises `Undecided` if their partition is no longer ours."""
    assignment = current_assignment.get()
    if assignment is not None and assignment.cut_off:
        raise Undecided("its partition was revoked, nothing more is started")
