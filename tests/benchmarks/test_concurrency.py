"""Contenders of the benchmark of concurrency handle a whole topic on a real Kafka and say what that took."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.concurrency import SHAPES, KeyedBench, Shape
from benchmarks.consumers import default_python, versions
from tests.shared import SharedKafka

PYTHON = default_python()


@pytest.mark.slow  # starts each contender in a process
@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_contender_handles_the_whole_topic(shape: Shape, kafka: SharedKafka, tmp_path: Path) -> None:
    if shape.needs is not None and shape.needs not in versions(PYTHON):
        pytest.skip(f"{PYTHON} has no {shape.needs}; `make bench` installs it")
    bench = KeyedBench(kafka.bootstrap, PYTHON, tmp_path, messages=100, partitions=2)
    asyncio.run(bench.fill())
    assert bench.turn(shape.contender(1, 4)).wall > 0
