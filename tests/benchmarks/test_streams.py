"""Every agent of the benchmark of Faust handles a whole topic on a real Kafka and says what that took."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.consumers import Measurement, default_python, versions
from benchmarks.streams import ENTRANTS, Entrant, Figures, JsonBench
from rich.console import Console
from tests.databases.redis import redis_server
from tests.databases.server import skip_if_missing
from tests.shared import SharedKafka

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # starts a Redis, and a worker for each agent

PYTHON = default_python()
STOCK, PLAIN = Entrant("take", "Faust"), Entrant("take", "Ackwise")


@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda entrant: entrant.name)
def test_an_agent_handles_the_whole_topic(entrant: Entrant, kafka: SharedKafka, tmp_path: Path) -> None:
    if "faust-streaming" not in versions(PYTHON):
        pytest.skip(f"{PYTHON} has no faust-streaming; `make bench` installs it")
    bench = JsonBench(kafka.bootstrap, PYTHON, tmp_path, messages=2_000)
    asyncio.run(bench.fill())
    with skip_if_missing("Redis"), redis_server(tmp_path / "redis") as redis:
        measured = bench.turn(entrant.contender(f"redis://127.0.0.1:{redis.port}/0"))
    assert measured.wall >= measured.cpu / 2 > 0


def test_ratios_are_taken_round_by_round_and_the_median_is_judged() -> None:
    rounds = {
        STOCK: [Measurement(60.0, 60.0, 0.0, {}), Measurement(90.0, 60.0, 0.0, {})],
        PLAIN: [Measurement(80.0, 60.0, 0.0, {}), Measurement(100.0, 60.0, 0.0, {})],
    }
    figures = Figures(rounds, "made up")
    assert figures.as_json()["agents"]["take, Ackwise"]["times"] == [0.75, 0.9]
    console = Console(width=100)
    with console.capture() as printed:
        console.print(*figures.tables())
    assert "0.82 (0.75–0.90)" in printed.get()
    assert "missed" in printed.get()
