"""Portions of a plan: the records of its steps, piece by piece, at most so many at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka import TopicPartition

from ackwise.middleware.agent import Agent, readers_of
from ackwise.middleware.message import Delivery, delivery_of
from ackwise.middleware.repairplan import Action, RepairStep, Risk, Title
from ackwise.middleware.run import Run
from ackwise.plugin.group.group import Group
from ackwise.plugin.repair.candidate import REPLAY_ID, Candidate, RepairFate, attempt_of, is_replay
from ackwise.plugin.repair.origins import Origins

__all__ = ["Piece", "Pieces"]

#: Microseconds by which the clock of a producer may be ahead of those that judged.
_SKEW: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """The offsets from `start` to before `end` of one step: the messages that were found, and how many offsets have another fate."""

    step: RepairStep
    start: int
    end: int
    candidates: Sequence[Candidate]
    others: Counter[str]

    @property
    def fates(self) -> Counter[str]:
        """How many had which fate, as far as it is known; what has none may be sent."""
        return self.others + Counter((each.fate or RepairFate.READY).value for each in self.candidates)


class Pieces:
    """What the steps of one plan are about, for one group, as `origins` has it."""

    def __init__(self, origins: Origins, group: Group, title: Title, *, with_review: bool) -> None:
        self._origins = origins
        self._group = group
        self._title = title
        self._with_review = with_review

    async def of(self, step: RepairStep, start: int, most: int) -> AsyncIterator[Piece]:
        """A step from the offset `start` on, at most `most` records in a piece. Raises `Unavailable`."""
        if start >= step.end:
            return
        readers = readers_of(self._group.agents, step.topic)
        agents = [agent for agent in self._group.agents if agent.name == step.handler] if step.handler else readers
        if (fate := _refused(step, agents, self._group, self._with_review)) is not None:
            yield _without(step, start, step.end, fate)
            return
        partition = TopicPartition(step.topic, step.partition)
        log = await self._origins.bounds(partition)
        while start < step.end:
            if start < log.start or start >= log.end:
                piece = _without(step, start, min(step.end, log.start) if start < log.start < log.end else step.end, RepairFate.DELETED)
            else:
                records, end = await self._origins.read(partition, start, min(step.end, log.end), most)
                found = [
                    _candidate(step, agent, delivery_of((record.topic, record.partition), record), self._title)
                    for record in records
                    for agent in agents
                ]
                empty = end - start - len(records)
                piece = Piece(step, start, end, found, Counter({RepairFate.EMPTY.value: empty} if empty else {}))
            yield piece
            start = piece.end


def _without(step: RepairStep, start: int, end: int, fate: RepairFate) -> Piece:
    return Piece(step, start, end, [], Counter({fate.value: end - start}))


def _refused(step: RepairStep, agents: Sequence[Agent], group: Group, with_review: bool) -> RepairFate | None:
    """Why nothing of a step is done, if so."""
    if step.action in (Action.REVIEW, Action.REQUEUE):
        return RepairFate.MANUAL
    if step.risk is Risk.REVIEW and not with_review:
        return RepairFate.REVIEWABLE
    if not agents:
        return RepairFate.HANDLERLESS
    epoch = 0 if group.dedup is None else group.dedup.epoch
    return RepairFate.OTHER_EPOCH if step.handler and (step.dedup_epoch or 0) != epoch else None


def _candidate(step: RepairStep, agent: Agent, delivery: Delivery, title: Title) -> Candidate:
    written = delivery.timestamp_ms * 1000
    first, last = step.record_ts or (written, title.as_of + _SKEW)
    read = delivery._replace(attempt=attempt_of(step), replay_id=REPLAY_ID if is_replay(step) else None)
    return Candidate(step, agent, Run.of(read), None if first <= written <= last else RepairFate.REPLACED)
