"""The benchmark of the outbox takes its turns and its ratios as it says."""

from __future__ import annotations

import pytest
from benchmarks.outbox import Figures, percentiles, read_options
from rich.console import Console


def test_ratios_are_taken_round_by_round() -> None:
    figures = Figures()
    figures.drains |= {"raw": [100.0, 200.0], "relay": [70.0, 160.0]}
    figures.business |= {"an order, without outbox": [10.0, 10.0], "an order, rows and relay": [6.0, 8.0]}
    figures.wakes |= {"in process": [(1.0, 2.0), (3.0, 4.0)]}
    console = Console(width=120)
    with console.capture() as printed:
        console.print(*figures.tables())
    assert "0.75 (0.70–0.80)" in printed.get()
    assert "0.70 (0.60–0.80)" in printed.get()
    assert figures.as_json()["wake_ms"] == {"in process": [(1.0, 2.0), (3.0, 4.0)]}


def test_percentiles_are_milliseconds() -> None:
    assert percentiles([0.001 * number for number in range(101)]) == pytest.approx((50.0, 99.0))


def test_the_options_have_defaults() -> None:
    options = read_options([])
    assert (options.rows, options.transactions, options.wakes, options.rounds) == (20_000, 2_000, 200, 5)
