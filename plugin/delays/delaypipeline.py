"""Delay pipeline: what the lanes of the relay run instead of a handler's pipeline.

    wait → read the cancellations → decide → publish, send or record → settle

A run waits until the wait of its rung is over. Its records are then moved independently: one that can't be moved delays no other one. It
is retained for a while and then written to a rung again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ackwise.middleware.errors import AckwiseError, EventLogUnavailable, PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.disposition import Reason
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.message.outgoing import MISSING, Acked, MessageSender, Publisher, TopicMissing
from ackwise.middleware.pipeline.settlement import Assignment
from ackwise.middleware.policies.delaytopic import Ladder, wait_of
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, Stage, divide
from ackwise.plugin.consumer.workerstate import DelayCounts
from ackwise.plugin.delays.cancellations import Cancellations
from ackwise.plugin.delays.nexthop import Bounds, Move, WaitingRun, decide, is_given_up, letter, look_at, smaller
from ackwise.plugin.topics.topicnames import TopicNames

log = Log()

#: Seconds until what waits is looked at again at the latest, since the wall clock may be set.
LONGEST_REST: Final = 5.0

#: Records of one rung that may be on their way side by side, and of one batch: one that is not acknowledged delays no other.
_ON_THEIR_WAY, _BATCH = 50_000, 1_000

#: Milliseconds by which what is set aside is put together, so that what is due together is moved together.
_SLOT: Final = 20

#: Seconds for which what can't be moved is held, and how many of them are; then it is written to a rung again.
_HELD: Final = 10.0
_MOST_HELD: Final = 1_000

#: Back-off of what could not be moved: seconds at first, doubling up to the second.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 5.0

#: Ways that are no topic.
_ASIDE, _CANCELLED = "aside/", "cancelled/"

#: Times that what is refused for good is made smaller in one go.
_SHRINKS: Final = 5


_Part = tuple[WaitingRun, list[Move]]


class Holding(Assignment, Protocol):
    """What the delay pipeline asks of its lane."""

    def take_back(self, runs: Sequence[Run], /) -> bool:
        """Hold `runs`, which left their batch."""
        ...


class DelayPipeline:
    """Moves the records of all rungs of one relay. `clock` is wall time in seconds: due times cross machines."""

    def __init__(
        self,
        names: TopicNames,
        publisher: Publisher,
        sender: MessageSender,
        cancellations: Cancellations,
        *,
        ladder: Callable[[], Ladder],
        has_room: Callable[[], bool],
        held: Callable[[], int],
        bounds: Bounds,
        counts: DelayCounts,
        sink: EventSink | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        longest_rest: float = LONGEST_REST,
    ) -> None:
        """`ladder` is that of the topic as it is now. `has_room`: whether more may be set aside in memory. `held`: how many records
        could not be moved and are held, in all lanes.
        """
        self.agent = Agent("delay relay", (names.delay,), "message", _never, _never, max_batch=_BATCH, concurrency=_ON_THEIR_WAY)
        self._names = names
        self._publisher = publisher
        self._sender = sender
        self._cancellations = cancellations
        self._ladder = ladder
        self._has_room = has_room
        self._bounds = bounds
        self._counts = counts
        self._sink = sink
        self._clock = clock
        self._monotonic = monotonic
        self._longest_rest = longest_rest
        self._held = held
        self._throttle = LogThrottle()

    def make(self, place: TopicPartition, records: Sequence[Any]) -> list[Run]:
        """What was fetched of a rung."""
        return [WaitingRun(place, records, self, seen=self._now_ms())]

    async def __call__(self, runs: list[Run], assignment: Holding) -> None:
        """Take those whose wait is over as far as they go; the others, and what can't be moved now, come up again.

        What goes the same way is settled by itself, so that nothing waits for a target that does not answer but what is for it.
        """
        now = self._now_ms()  # before the reading, which then has every cancellation of what is due by now
        looked_at = self._look(runs, now)
        due = {*looked_at}
        _hold([run for run in runs if run not in due], runs, assignment)
        if not looked_at or not await self._know_cancelled(looked_at) or assignment.cut_off:
            return
        if not self._ladder():  # the client knows no partition of the topic now, as while it is made again
            self._put_off(looked_at)
            _hold(looked_at, runs, assignment)
            return
        ways: dict[str, list[_Part]] = {}
        for run in looked_at:
            for way, part in self._part(runs, run, now):
                ways.setdefault(way, []).append(part)
        aside = ways.pop(_ASIDE, [])
        _hold([run for run, _ in aside], runs, assignment)
        await asyncio.gather(*(self._go(way, parts, runs, assignment) for way, parts in ways.items()))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _look(self, runs: list[Run], now: int) -> list[WaitingRun]:
        """Those of `runs` whose wait is over; the rest of them is postponed until it is."""
        over: list[WaitingRun] = []
        for run in [*runs]:
            assert isinstance(run, WaitingRun)
            if run.is_looked_at:
                over.append(run)
                continue
            wait = wait_of(run.place.partition)
            waits = ((number, until) for number, at in enumerate(run.times()) if (until := look_at(at, run.seen, wait)) > now)
            if (waiting := next(waits, None)) is None:  # nothing behind the first that waits is looked at
                over.append(run)
                continue
            ripe, until = waiting
            if ripe:
                head = run.cut(ripe)
                runs.append(head)
                over.append(head)
            self._postpone(run, until, now)
        for run in over:
            run.is_looked_at = True
        return over

    def _postpone(self, run: Run, until: int, now: int, why: str = "it waits") -> None:
        run.postpone(self._monotonic() + min((until - now) / 1000, self._longest_rest), why)

    async def _know_cancelled(self, runs: Sequence[WaitingRun]) -> bool:
        """Return whether everything that was cancelled before now is known: one that was accepted was acknowledged before."""
        try:
            await self._cancellations.read()
        except Exception as error:  # noqa: BLE001  # whatever kept it from being known, nothing moves without it
            self._put_off(runs)
            self._counts.is_halted = True
            if self._throttle.is_due("cancellations"):
                log.error(
                    "cancellations could not be read",
                    group=self._names.group,
                    topic=self._names.delay,
                    error=said(error),
                )
            return False
        self._throttle.reset("cancellations")
        self._counts.is_halted = False
        return True

    def _put_off(self, runs: Sequence[WaitingRun]) -> None:
        for run in runs:
            run.postpone(self._monotonic() + min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(run.tries, 10)), "it can't be moved now")
            run.tries += 1

    def _decide(self, run: WaitingRun, now: int) -> list[Move]:
        ladder = self._ladder()
        since = run.failing_since
        is_given_up = since is not None and (self._monotonic() - since >= _HELD or self._held() > _MOST_HELD)
        has_room, cancelled = self._has_room(), self._cancellations.keys
        return [
            decide(
                run,
                record,
                now,
                names=self._names,
                ladder=ladder,
                bounds=self._bounds,
                cancelled=cancelled,
                has_room=has_room,
                is_given_up=is_given_up,
            )
            for record in run.records
        ]

    def _part(self, runs: list[Run], run: WaitingRun, now: int) -> list[tuple[str, _Part]]:
        """The parts of `run` that go the same way, which are their own runs. What is aside for equally long is together."""
        moves = self._decide(run, now)
        places: dict[tuple[str, int], list[int]] = {}
        for place, move in enumerate(moves):
            places.setdefault((_way_of(move), -(-move.until // _SLOT) * _SLOT), []).append(place)
        found: list[tuple[str, _Part]] = []
        for ((way, until), chosen), part in zip(places.items(), divide(runs, run, [*places.values()]), strict=True):
            if way == _ASIDE:
                part.failing_since = part.overdue_since = None
                self._postpone(part, until, self._now_ms(), "it is due soon")
            found.append((way, (part, [moves[place] for place in chosen])))
        return found

    async def _go(self, way: str, parts: Sequence[_Part], runs: list[Run], assignment: Holding) -> None:
        """Carry out the moves of one way, and settle what is done."""
        pairs = [(run, move) for run, moves in parts for move in moves]
        self._tell_odd(pairs)
        if way == _CANCELLED:
            await self._record([move for _, move in pairs])
        elif pairs[0][1].message is not None:
            await self._send(pairs)
        else:
            await self._publish(pairs)
        for run, moves in parts:
            self._settle(runs, run, moves, assignment)

    async def _record(self, cancelled: Sequence[Move]) -> None:
        """Drop what is cancelled, once that is durable."""
        if not cancelled:
            return
        if self._sink is not None:
            for move in cancelled:
                if move.cancelled is not None:
                    self._sink.record(move.cancelled)
            try:
                await self._sink.flush()
            except EventLogUnavailable as error:
                log.warning("cancellations could not be recorded", group=self._names.group, error=said(error))
                return
        for move in cancelled:
            move.is_done = True
        self._counts.cancelled += len(cancelled)

    async def _send(self, moves: Sequence[tuple[WaitingRun, Move]]) -> None:
        """Send what was to be sent later. What its topic refuses for good is a dead letter, and so is what has had no topic for long."""
        answers = await self._sender.send_many([move.message for _, move in moves if move.message is not None])
        refused: list[tuple[WaitingRun, Move]] = []
        for (run, move), answer in zip(moves, answers, strict=True):
            if isinstance(answer, Acked):
                move.is_done = True
            elif not answer.retriable:
                move.copy = smaller(run, move, self._names, PublishRefused(answer.cause), self._now_ms())
                refused.append((run, move))
            elif not (answer.error == MISSING and self._give_up(run, move, answer.cause)):
                self._tell_unmoved(run, answer.cause)
            else:
                refused.append((run, move))
        self._tell_letters(refused)
        await self._publish(refused)

    def _give_up(self, run: WaitingRun, move: Move, why: str) -> bool:
        """Return whether what has no target becomes a dead letter, since it was due long ago."""
        now = self._now_ms()
        if is_given_up(move.due, now, self._bounds.max_delay):
            move.copy = letter(run, move.record, self._names, Reason.NO_TARGET, PublishUnavailable(why), now)
            return True
        return False

    async def _publish(self, moves: Sequence[tuple[WaitingRun, Move]]) -> None:
        """Publish copies. One that is refused for good becomes a dead letter, and that is cut until it fits."""
        for _ in range(_SHRINKS):
            copies = [(run, move, move.copy) for run, move in moves if move.copy is not None]
            if not copies:
                return
            refused: list[tuple[WaitingRun, Move]] = []
            for (run, move, copy), answer in zip(copies, await self._publisher.publish([copy for *_, copy in copies]), strict=True):
                if answer is None:
                    move.is_done = True
                elif isinstance(answer, PublishRefused):
                    if (cut := smaller(run, move, self._names, answer, self._now_ms())) is not None:
                        move.copy = cut
                        refused.append((run, move))
                elif isinstance(answer, TopicMissing) and copy.topic == self._names.retry and self._give_up(run, move, str(answer)):
                    self._tell_letters([(run, move)])
                    refused.append((run, move))
                else:
                    self._tell_unmoved(run, str(answer))
            moves = refused

    def _settle(self, runs: list[Run], run: WaitingRun, moves: Sequence[Move], assignment: Holding) -> None:
        """What is done is settled; the rest of `run` comes up again."""
        done = [place for place, move in enumerate(moves) if move.is_done]
        failed = [place for place, move in enumerate(moves) if not move.is_done]
        fallen = iter(divide(runs, run, [each for each in (done, failed) if each]))
        if done:
            settled = next(fallen)
            settled.stage = Stage.SETTLED
            assignment.pass_settled([settled])
        if failed:
            part = next(fallen)
            part.failing_since = self._monotonic() if part.failing_since is None else part.failing_since
            part.overdue_since = min(moves[place].due for place in failed)
            self._put_off([part])
            _hold([part], runs, assignment)

    def _tell_odd(self, pairs: Sequence[tuple[WaitingRun, Move]]) -> None:
        """Count and log what was cut, what Ackwise did not write, and what can't be read here."""
        cut = [(run, move) for run, move in pairs if move.is_cut and move.copy is not None]
        self._counts.cut += len(cut)
        if cut and self._throttle.is_due("cut"):
            log.error(
                "copies due later than max_delay allows",
                topic=cut[0][0].place.topic,
                partition=cut[0][0].place.partition,
                offset=cut[0][1].record.offset,
                messages=len(cut),
                at_most=self._bounds.max_delay,
            )
        if (unreadable := [(run, move) for run, move in pairs if move.unreadable]) and self._throttle.is_due("unreadable"):
            log.error(
                "delayed copies unreadable for this worker",
                topic=unreadable[0][0].place.topic,
                partition=unreadable[0][0].place.partition,
                offset=unreadable[0][1].record.offset,
                messages=len(unreadable),
                error=unreadable[0][1].unreadable,
            )
        for run, move in pairs:
            if move.foreign is not None:
                log.error(
                    "foreign record in a delay topic",
                    topic=run.place.topic,
                    partition=run.place.partition,
                    offset=move.record.offset,
                    reason=Reason.FOREIGN_COPY,
                    dead_letters=self._names.dead_letter,
                )

    def _tell_unmoved(self, run: WaitingRun, why: str) -> None:
        if self._throttle.is_due(f"unmoved {why}"):
            log.warning(
                "due copies could not be moved",
                topic=run.place.topic,
                partition=run.place.partition,
                error=why,
            )

    def _tell_letters(self, moves: Sequence[tuple[WaitingRun, Move]]) -> None:
        for run, move in moves:
            log.error(
                "delayed message became a dead letter",
                topic=run.place.topic,
                partition=run.place.partition,
                offset=move.record.offset,
                target=self._names.retry if move.message is None else move.message.topic,
                dead_letters=self._names.dead_letter,
            )


def _way_of(move: Move) -> str:
    """What is to be done with it: a topic, or what is done here."""
    if move.cancelled is not None:
        return _CANCELLED
    if move.message is not None:
        return move.message.topic
    return _ASIDE if move.copy is None else move.copy.topic


def _hold(held: Sequence[Run], runs: list[Run], assignment: Holding) -> None:
    """Give `held` back, which come up again though others of `runs` are still at work."""
    if held:
        gone = {*held}
        runs[:] = [run for run in runs if run not in gone]
        assignment.take_back(held)


async def _never(_: object) -> None:
    raise AckwiseError("the delay relay has no handler")
