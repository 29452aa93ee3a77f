"""`python -m tests.failures.modes --seeds 5`: trials of each mode and fault on a Kafka of its own, and the table of what they came to."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.failures.modes.playing import Outcome, play, table
from tests.failures.modes.trial import FAULTS, MODES
from tests.servers import PROPERTIES

from ackwise.plugin.local.broker import local_kafka


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if anything was lost, out of order or against a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.failures.modes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each mode and fault (1)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--faults", nargs="*", default=[*FAULTS], choices=[*FAULTS], help="these alone")
    parser.add_argument("--modes", nargs="*", default=[*MODES], choices=[*MODES], help="these alone")
    parser.add_argument("--at-once", type=int, default=4, help="trials at a time (4)")
    told = parser.parse_args(arguments)
    seeds = range(told.first, told.first + told.seeds)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ackwise-modes-") as name, local_kafka(Path(name) / "kafka", properties=PROPERTIES) as broker:
        outcomes: list[Outcome] = asyncio.run(play(broker, Path(name), told.modes, told.faults, seeds, at_once=told.at_once))
    sys.stdout.write(f"{table(outcomes)}\n\n{len(outcomes)} trials in {time.monotonic() - begun:.0f} s\n")
    for outcome in outcomes:
        for what in outcome.wrong:
            sys.stdout.write(f"{outcome.mode}, {outcome.fault}, seed {outcome.seed}: {what}\n")
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
