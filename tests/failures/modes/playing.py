"""Many trials on one broker, and the table of what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.failures.modes.judge import Verdict
from tests.failures.modes.trial import FAULTS, MODES, Trial

from ackwise.plugin.local.broker import LocalKafka

__all__ = ["Outcome", "play", "table"]

#: Seconds that a broker is away.
AWAY = 3.0


class Outcome(NamedTuple):
    """What came of one trial."""

    fault: str
    mode: str
    seed: int
    dedup: bool
    messages: int
    verdict: Verdict | None
    error: str = ""

    @property
    def wrong(self) -> list[str]:
        """What must not be, in words."""
        found = [self.error] if self.error else []
        return found if self.verdict is None else [*found, *self.verdict.lost, *self.verdict.violations, *self.verdict.broken]


class Restart:
    """A restart that all trials of a broker wait for, and that is made once."""

    def __init__(self, broker: LocalKafka, trials: int) -> None:
        self._broker = broker
        self._barrier = asyncio.Barrier(trials)
        self._is_back = asyncio.Event()

    async def __call__(self) -> None:
        if await self._barrier.wait() == 0:
            await asyncio.to_thread(self._broker.kill)
            await asyncio.sleep(AWAY)
            await asyncio.to_thread(self._broker.start)
            self._is_back.set()
        await self._is_back.wait()


async def play(
    broker: LocalKafka, folder: Path, modes: Sequence[str], faults: Sequence[str], seeds: Iterable[int], *, at_once: int
) -> list[Outcome]:
    """Play a trial for each mode, fault and seed. Those whose broker goes away come last, all of a seed together."""
    room, outcomes, group = asyncio.Semaphore(at_once), [], iter(range(1_000_000))

    async def trial(mode: str, fault: str, seed: int, restart: Restart | None = None) -> Outcome:
        async with room:
            name = f"modes-{next(group)}"
            here = folder / name
            here.mkdir()
            played = Trial(broker.bootstrap, here, name, MODES[mode], fault, seed, restart)
            verdict, error = None, ""
            try:
                verdict = await played.run()
            except TimeoutError:
                verdict, error = played.verdict(), "did not come to its end"
            except AssertionError as failed:
                error = str(failed)
            return Outcome(fault, mode, seed, played.dedup, len(played.sent), verdict, error)

    seeds = [*seeds]
    apart = [fault for fault in faults if fault != "broker"]
    outcomes += await asyncio.gather(*(trial(mode, fault, seed) for seed in seeds for fault in apart for mode in modes))
    if "broker" in faults:
        for seed in seeds:
            room = asyncio.Semaphore(len(modes))
            restart = Restart(broker, len(modes))
            outcomes += await asyncio.gather(*(trial(mode, "broker", seed, restart) for mode in modes))
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each fault and mode, as a table of Markdown."""

    def place(outcome: Outcome) -> tuple[int, int]:
        return [*FAULTS].index(outcome.fault), [*MODES].index(outcome.mode)

    lines = [
        "| fault | mode | trials | messages | lost | out of order | against a promise | repeats |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for _, those in groupby(sorted(outcomes, key=place), key=place):
        group = [*those]
        verdicts = [outcome.verdict for outcome in group if outcome.verdict is not None]
        figures = [
            len(group), sum(outcome.messages for outcome in group), sum(len(verdict.lost) for verdict in verdicts),
            sum(len(verdict.violations) for verdict in verdicts), sum(len(verdict.broken) for verdict in verdicts),
            sum(verdict.repeats for verdict in verdicts),
        ]  # fmt: skip
        lines.append(f"| {group[0].fault} | {group[0].mode} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)
