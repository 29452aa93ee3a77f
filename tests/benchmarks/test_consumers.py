"""Every contender of the benchmark handles a whole topic on a real Kafka and says what that took."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.consumers import AIMS, CONTENDERS, Bench, Contender, Figures, Measurement, able, default_python
from rich.console import Console
from tests.shared import SharedKafka

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # starts each contender in a process

PYTHON = default_python()


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_a_contender_handles_the_whole_topic(contender: Contender, kafka: SharedKafka, tmp_path: Path) -> None:
    runnable, left_out = able(PYTHON, [contender.name])
    if not runnable:
        pytest.skip(left_out[0])
    bench = Bench(kafka.bootstrap, PYTHON, tmp_path, messages=2_000)
    asyncio.run(bench.fill())
    measured = bench.turn(contender)
    assert measured.wall >= measured.cpu / 2 > 0


def test_the_phases_add_up_to_what_ackwise_took(kafka: SharedKafka, tmp_path: Path) -> None:
    bench = Bench(kafka.bootstrap, PYTHON, tmp_path, messages=2_000)
    asyncio.run(bench.fill())
    measured = bench.turn(CONTENDERS[-2], phases=True)
    assert min(measured.phases.values()) >= 0
    assert sum(measured.phases.values()) == pytest.approx(measured.cpu, rel=0.3)


def test_ratios_are_taken_round_by_round() -> None:
    bare, ackwise = CONTENDERS[0], CONTENDERS[5]
    rounds = {
        bare: [Measurement(2.0, 1.0, 0.0, {}), Measurement(4.0, 1.0, 0.0, {})],
        ackwise: [Measurement(4.0, 4.0, 0.0, {}), Measurement(16.0, 4.0, 0.0, {})],
    }
    figures = Figures(rounds, {}, "made up")
    assert figures.as_json()["contenders"][ackwise.name]["times"] == {"bare": [0.5, 0.25]}
    console = Console(width=120)
    with console.capture() as printed:
        console.print(*figures.tables())
    assert "0.38 (0.25–0.50)" in printed.get()
    assert [figures.times(aim) for aim in AIMS if aim.contender == ackwise.name] == [[4.0, 4.0]]
    assert "4.00 (4.00–4.00)" in printed.get()
    assert [aim.is_reached(1.5) for aim in AIMS if aim.base == "bare"] == [True] * 5
    assert [aim.is_reached(9.0) for aim in AIMS if aim.base in ("bare", "Faust")] == [False, False, False, True, True, False]
