"""Each way of consuming under each kind of fault, on a real Kafka: nothing lost, no order broken, no promise of a commit broken.

`MODES_SEEDS=20 pytest -m nightly tests/failures/test_modes.py` plays so many of each.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.failures.modes.trial import FAULTS, MODES, Trial
from tests.failures.world import each
from tests.servers import new_name
from tests.shared import SharedKafka

from ackwise.plugin.local.localkafka import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: What does not need a broker that goes away.
HERE = [fault for fault in FAULTS if fault != "broker"]

#: Seconds that a broker is unavailable.
AWAY = 3.0

Case = tuple[str, str, int]
"""Mode, fault and seed."""


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


async def play(kafka: SharedKafka | LocalKafka, folder: Path, cases: Sequence[Case], goes: LocalKafka | None = None) -> None:
    """Play a trial for each case, some at a time, and assert that none of them went wrong; `goes` is the broker if it goes away."""
    restart = None if goes is None else Restart(goes, len(cases))

    async def attempt(case: Case) -> None:
        mode, fault, seed = case
        name = new_name("modes")
        (folder / name).mkdir()
        trial = Trial(kafka.bootstrap, folder / name, name, MODES[mode], fault, seed, restart)
        try:
            verdict = await trial.run()
        except TimeoutError:
            raise AssertionError(f"did not end: {trial.verdict()}") from None
        assert verdict.is_clean, verdict
        assert len(trial.sent) >= 100, "there is something to judge"

    await each(cases, attempt, at_once=6)


async def test_no_fault_loses_a_message_or_breaks_an_order_or_a_promise(kafka: SharedKafka, tmp_path: Path) -> None:
    """Each fault once, and each mode."""
    modes = itertools.cycle(MODES)
    await play(kafka, tmp_path, [(next(modes), fault, 1) for fault in HERE])


@pytest.mark.nightly
@pytest.mark.slow  # waits for the leases and the retries of every mode, 10 to 12 s in some
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fault", HERE)
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("MODES_SEEDS", "1"))))
async def test_in_each_mode_no_fault_loses_a_message_or_breaks_an_order_or_a_promise(
    kafka: SharedKafka, tmp_path: Path, fault: str, seed: int
) -> None:
    await play(kafka, tmp_path, [(mode, fault, seed) for mode in MODES])
