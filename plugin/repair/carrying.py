"""Carries out a repair plan: each record is looked up, asked about, sent again, and said to be, in portions that can be repeated."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiokafka import TopicPartition

from ackwise.middleware.agent import Agent
from ackwise.middleware.entry import Entry
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Delivery
from ackwise.middleware.repair import Action, Risk, Step, Title, read_steps, read_title
from ackwise.plugin.group import Group
from ackwise.plugin.member import delivery_of
from ackwise.plugin.repair.candidate import AGAIN, OPEN, REPLAY_ID, Candidate, Fate, attempt_of, is_replay
from ackwise.plugin.repair.origins import Origins, reading
from ackwise.plugin.repair.progress import Progress
from ackwise.plugin.repair.sender import Sender

__all__ = ["Carried", "carry_out", "steps_for"]

#: Records that are looked up, asked about and sent together.
_PORTION: Final = 100

#: Microseconds by which the clock of a producer may be ahead of those that judged.
_SKEW: Final = 60_000_000

#: Places of each fate that are told.
_SHOWN: Final = 20


@dataclass
class Carried:
    """What became of the messages of a plan, those of earlier runs included."""

    counts: dict[tuple[Action, str], Counter[str]] = field(default_factory=dict)
    """By action and verdict."""
    places: dict[Fate, list[str]] = field(default_factory=dict)
    """Of each fate that is still to be done by somebody, the first ranges."""
    stopped: bool = False
    """It was asked to stop before the end."""

    def add(self, step: Step, fates: Mapping[str, int], start: int, end: int) -> None:
        """So many messages of a step, between these offsets, had these fates."""
        self.counts.setdefault((step.action, step.verdict), Counter()).update(fates)
        for fate in (Fate(name) for name, number in fates.items() if number and Fate(name) in OPEN):
            shown = self.places.setdefault(fate, [])
            if len(shown) < _SHOWN:
                shown.append(f"{step.topic}/{step.partition}/{start}" + (f"–{end - 1}" if end - start > 1 else ""))

    @property
    def is_done(self) -> bool:
        """Whether nobody has to do anything more."""
        return not self.places and not self.stopped


def steps_for(plan: Path, group: str) -> tuple[Title, int, int]:
    """The title of a plan, and how many of its steps and offsets are for `group`; every line is looked at.

    Raises `ConfigurationError` for a plan that can't be used, or has only steps for others.
    """
    title, steps, offsets, others = read_title(plan), 0, 0, set[str]()
    for step in read_steps(plan):
        if step.group == group:
            steps, offsets = steps + 1, offsets + step.offsets
        else:
            others.add(step.group)
    if others and not steps:
        raise ConfigurationError(
            f"{plan} has no step for group {group!r}, it is about {', '.join(sorted(others))}; name the app of that group"
        )
    return title, steps, offsets


async def carry_out(
    plan: Path,
    group: Group,
    *,
    execute: bool,
    with_review: bool = False,
    rate: float = 100.0,
    stop: asyncio.Event | None = None,
    tell: Callable[[int], None] = lambda offsets: None,
) -> Carried:
    """Do what the steps of `plan` for `group` say, at most `rate` copies per second; without `execute` only look what would be done.

    With `with_review` steps of risk `review` are done, too. After `stop` the portion at hand is finished. `tell` hears of offsets
    that are done. Raises `AckwiseError`: what was noted is done, and calling it again goes on.
    """
    title = steps_for(plan, group.settings.group)[0]
    carried = Carried()
    async with AsyncExitStack() as opened:
        progress = opened.enter_context(Progress(plan, title, writing=execute))
        origins = await opened.enter_async_context(reading(group.settings))
        sender = Sender(group, title, with_review)
        if execute:
            await opened.enter_async_context(sender.opened())
        pace = _Pace(rate)
        for step in read_steps(plan):
            if step.group != group.settings.group:
                continue
            start = progress.through(step)
            carried.add(step, progress.fates(step), step.start, start)
            tell(start - step.start)
            is_noted = execute
            async for end, candidates, fates in _portions(origins, group, title, step, start, with_review, pace.portion):
                await sender.find_keys(candidates)
                if execute:
                    await sender.send(candidates)
                fates.update(Counter((each.fate or Fate.READY).value for each in candidates))
                is_noted = is_noted and not any(fate in AGAIN for fate in fates)
                if is_noted:  # beyond, the store alone keeps the next run from sending again what this one sent
                    progress.note(step, end, fates)
                carried.add(step, fates, start, end)
                tell(end - start)
                start = end
                if stop is not None and stop.is_set():
                    carried.stopped = True
                    return carried
                await pace.wait(fates[Fate.SENT], stop)
    return carried


async def _portions(
    origins: Origins, group: Group, title: Title, step: Step, start: int, with_review: bool, most: int
) -> AsyncIterator[tuple[int, list[Candidate], Counter[str]]]:
    """The rest of a step from `start` on, in portions: up to which offset, the messages found, and how many had which other fate."""
    if start >= step.end:
        return
    agents = [agent for agent in group.agents if (agent.name == step.handler if step.handler else step.topic in agent.topics)]
    if (fate := _refused(step, agents, group, with_review)) is not None:
        yield step.end, [], Counter({fate.value: step.end - start})
        return
    partition = TopicPartition(step.topic, step.partition)
    log = await origins.bounds(partition)
    while start < step.end:
        if start < log.start or start >= log.end:
            end = min(step.end, log.start) if start < log.start < log.end else step.end
            yield end, [], Counter({Fate.DELETED.value: end - start})
        else:
            records, end = await origins.read(partition, start, min(step.end, log.end), most)
            candidates = [_candidate(step, agent, delivery_of(record), title) for record in records for agent in agents]
            yield end, candidates, Counter({Fate.EMPTY.value: empty} if (empty := end - start - len(records)) else {})
        start = end


def _refused(step: Step, agents: Sequence[Agent], group: Group, with_review: bool) -> Fate | None:
    """Why nothing of a step is done, if so."""
    if step.action is Action.REVIEW:
        return Fate.MANUAL
    if step.risk is Risk.REVIEW and not with_review:
        return Fate.REVIEWABLE
    if not agents:
        return Fate.HANDLERLESS
    epoch = 0 if group.dedup is None else group.dedup.epoch
    return Fate.OTHER_EPOCH if step.handler and (step.dedup_epoch or 0) != epoch else None


def _candidate(step: Step, agent: Agent, delivery: Delivery, title: Title) -> Candidate:
    written = delivery.timestamp_ms * 1000
    first, last = step.record_ts or (written, title.as_of + _SKEW)
    read = delivery._replace(attempt=attempt_of(step), replay_id=REPLAY_ID if is_replay(step) else None)
    return Candidate(step, agent, Entry(read), None if first <= written <= last else Fate.REPLACED)


class _Pace:
    """Not more than so many copies per second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._since = time.monotonic()
        self._sent = 0
        self.portion = min(_PORTION, max(1, round(rate)))

    async def wait(self, sent: int, stop: asyncio.Event | None) -> None:
        """Wait until so many more may have been sent, or until `stop`."""
        self._sent += sent
        ahead = self._since + self._sent / self._rate - time.monotonic()
        if ahead > 0 and sent:
            try:
                async with asyncio.timeout(ahead):
                    await (stop or asyncio.Event()).wait()
            except TimeoutError:
                pass
