"""Carrying out a repair plan, in portions that can be repeated: each record is looked up, guarded, sent again and recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.repairplan import Action, RepairStep, Title, read_steps, read_title
from ackwise.plugin.client.reading import TopicReader
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.topics import connected
from ackwise.plugin.repair.candidate import OPEN, RepairFate
from ackwise.plugin.repair.origins import Origins
from ackwise.plugin.repair.pace import Pace
from ackwise.plugin.repair.portions import Piece, Pieces
from ackwise.plugin.repair.progress import PlanProgress
from ackwise.plugin.repair.sender import Sender

__all__ = ["Carried", "carry_out", "steps_for"]

#: Places of each fate that are told.
_SHOWN: Final = 20


@dataclass
class Carried:
    """What became of the messages of a plan, those of earlier runs included."""

    counts: dict[tuple[Action, str], Counter[str]] = field(default_factory=dict)
    """By action and verdict."""
    places: dict[RepairFate, list[str]] = field(default_factory=dict)
    """Of each fate that is still to be done by somebody, the first ranges."""
    earlier: int = 0
    """How many of the messages an earlier run was done with."""
    stopped: bool = False
    """It was asked to stop before the end."""

    def add(self, step: RepairStep, fates: Mapping[str, int], start: int, end: int) -> None:
        """So many messages of a step, between these offsets, had these fates."""
        self.counts.setdefault((step.action, step.verdict), Counter()).update(fates)
        for fate in (RepairFate(name) for name, number in fates.items() if number and RepairFate(name) in OPEN):
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
        if step.action is Action.REQUEUE:  # of no group: an outbox is anybody's
            continue
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
    on_progress: Callable[[int], None] = lambda offsets: None,
) -> Carried:
    """Do what the steps of `plan` for `group` say, at most `rate` copies per second; without `execute` only look what would be done.

    With `with_review` steps of risk `review` are done, too. After `stop` the portion at hand is finished. `tell` hears of offsets
    that are done. Raises `AckwiseError`: what was noted is done, and calling it again goes on.
    """
    title = steps_for(plan, group.settings.group)[0]
    carried = Carried()
    async with AsyncExitStack() as opened:
        progress = opened.enter_context(PlanProgress(plan, title, writing=execute))
        origins = Origins(TopicReader(await opened.enter_async_context(connected(group.settings))))
        sender, pace = Sender(group, title, with_review), Pace(rate)
        if execute:
            await opened.enter_async_context(sender.opened())
        pieces = Pieces(origins, group, title, with_review=with_review)
        async for portion in _portions(_rest_of(plan, group, pieces, progress, carried, on_progress, pace.portion), pace.portion):
            candidates = [each for piece in portion for each in piece.candidates]
            await sender.find_keys(candidates)
            if execute:
                await sender.send(candidates)
                progress.note([(piece.step, piece.end, piece.fates) for piece in portion])
            for piece in portion:
                carried.add(piece.step, piece.fates, piece.start, piece.end)
                on_progress(piece.end - piece.start)
            if stop is not None and stop.is_set():
                carried.stopped = True
                break
            await pace.wait(sum(each.fate is RepairFate.SENT for each in candidates), stop)
    return carried


async def _rest_of(
    plan: Path, group: Group, pieces: Pieces, progress: PlanProgress, carried: Carried, on_progress: Callable[[int], None], most: int
) -> AsyncIterator[Piece]:
    """What is not done yet of the steps of a group; what is, counts."""
    for step in read_steps(plan):
        if step.group == group.settings.group:
            start, fates = progress.through(step), progress.fates(step)
            carried.add(step, fates, step.start, start)
            carried.earlier += sum(fates.values())
            on_progress(start - step.start)
            async for piece in pieces.of(step, start, most):
                yield piece


async def _portions(pieces: AsyncIterator[Piece], most: int) -> AsyncIterator[list[Piece]]:
    """Pieces of several steps together, about `most` messages at a time: steps are short where losses are scattered."""
    portion: list[Piece] = []
    async for piece in pieces:
        portion.append(piece)
        if len(portion) >= most or sum(len(each.candidates) for each in portion) >= most:
            yield portion
            portion = []
    if portion:
        yield portion
