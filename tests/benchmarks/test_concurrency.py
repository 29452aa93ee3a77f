"""Contenders of the benchmark of concurrency handle a whole topic on a real Kafka and say what that took."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from benchmarks.concurrency import SHAPES, Figures, KeyedBench, Setting, Shape, read_options
from benchmarks.consumers import Measurement, default_python, versions
from rich.console import Console
from tests.shared import SharedKafka

PYTHON = default_python()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_contender_handles_the_whole_topic(shape: Shape, kafka: SharedKafka, tmp_path: Path) -> None:
    if shape.needs is not None and shape.needs not in versions(PYTHON):
        pytest.skip(f"{PYTHON} has no {shape.needs}; `make bench` installs it")
    bench = KeyedBench(kafka.bootstrap, PYTHON, tmp_path, messages=100, partitions=2)
    asyncio.run(bench.fill())
    assert bench.turn(shape.contender(1, 4)).wall > 0


def test_keys_come_again() -> None:
    bench = KeyedBench("nowhere:1", PYTHON, Path(), messages=1)
    assert bench.key(3) == bench.key(3 + 997) != bench.key(4)


def test_ratios_are_taken_round_by_round_to_the_loop_that_goes_one_by_one() -> None:
    one, mine = SHAPES[0].contender(20, 16), SHAPES[-1].contender(20, 16)
    rounds = {
        one: [Measurement(20_000.0, 60.0, 0.0, {}), Measurement(21_000.0, 60.0, 0.0, {})],
        mine: [Measurement(2_000.0, 90.0, 0.0, {}), Measurement(1_500.0, 80.0, 0.0, {})],
    }
    figures = Figures({Setting(1, 20): rounds}, "made up")
    (setting,) = json.loads(json.dumps(figures.as_json()))["settings"]
    assert setting["contenders"]["Ackwise, order key"]["times"] == [10.0, 14.0]
    console = Console(width=120)
    with console.capture() as printed:
        console.print(*figures.tables())
    assert "12.00 (10.00–14.00)" in printed.get()


def test_a_contender_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--only", "Ackwise;Celery"])
    assert "no contender is named Celery" in capsys.readouterr().err
