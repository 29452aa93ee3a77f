"""Every way of claiming in the benchmark works on its real database, and what is printed of it is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.claiming.network import EchoTimes, echo_times
from benchmarks.claiming.way import Turn
from benchmarks.stores import DATABASES, Contest, Figures, Measured, measure, read_options
from rich.console import Console
from tests.databases.server import Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # starts a server and a process for each database

#: One call of each way that is counted, and enough keys for the bytes of one to be told.
QUICK = read_options(["--rounds", "1", "--seconds", "0.001", "--keys", "20000"])


@pytest.mark.parametrize("name", DATABASES)
def test_every_way_handles_messages(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: Endpoint | None = request.getfixturevalue(f"own_{name.removesuffix('-once')}") if DATABASES[name].server else None
    url = DATABASES[name].url.replace("/0", "/9").format(port=server.port if server else 0, folder=tmp_path)
    measured = measure(Contest(name, far=False), url, QUICK)
    assert measured.turns.keys() > {"classic"}
    assert all(turn.wall > 0 for turns in measured.turns.values() for turn in turns)
    assert all(0 < size < 500 for size in measured.bytes.values())


def test_the_network_delays_each_way() -> None:
    straight, delayed = echo_times(0.002)
    assert delayed - straight >= 0.004


def test_ratios_are_taken_round_by_round_and_aims_are_judged() -> None:
    turns = {
        "classic": [Turn(200.0, 1.0), Turn(100.0, 1.0)],
        "classic, 10 tasks": [Turn(100.0, 1.0), Turn(25.0, 1.0)],
        "batch of 1, one trip": [Turn(50.0, 1.0), Turn(50.0, 1.0)],
        "batch of 100, one trip": [Turn(10.0, 1.0), Turn(10.0, 1.0)],
    }
    figures = Figures({Contest("redis", far=False): Measured(turns, [], {"compact": 31.0})}, EchoTimes(1e-5, 6e-4), "made up")
    assert figures.as_json()["contests"]["redis"]["ways"]["batch of 100, one trip"]["times"] == [20.0, 10.0]
    console = Console(width=140)
    with console.capture() as printed:
        console.print(*figures.tables())
    lines = printed.get().splitlines()
    assert any("batch of 1, one trip" in line and "3.0 (2.0–4.0)" in line for line in lines)
    assert any("15 × classic" in line and "reached" in line for line in lines)
    assert any("at most 30" in line and "missed" in line for line in lines)


def test_a_contest_that_fails_tells_why() -> None:
    with pytest.raises(SystemExit, match="postgres ended with 1"):
        measure(Contest("postgres", far=False), "postgresql://postgres@127.0.0.1:1/none", QUICK)
