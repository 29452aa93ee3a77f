"""The benchmark of a large outbox takes its options and prints its figures as it says."""

from __future__ import annotations

from benchmarks.large_outbox import Figures, read_options
from rich.console import Console


def test_the_options_have_defaults() -> None:
    options = read_options([])
    assert (options.rows, options.drained, options.json) == (10_000_000, 50_000, False)


def test_the_tables_have_rates_sizes_and_the_cleanup() -> None:
    figures = Figures({"the backlog": 12_345.6}, {"with the backlog": 91_100_000}, 1.72, 200_000)
    console = Console(width=120)
    with console.capture() as printed:
        console.print(*figures.tables())
    assert "12,346" in printed.get()
    assert "91.1" in printed.get()
    assert "200,000 rows in 1.7 s" in printed.get()
    assert figures.as_json()["cleanup_s"] == 1.72
