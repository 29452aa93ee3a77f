"""The benchmark of change data capture takes its options and prints its figures as it says."""

from __future__ import annotations

from benchmarks.cdc import Figures, read_options
from rich.console import Console


def test_the_options_have_defaults_and_are_read() -> None:
    options = read_options([])
    assert (options.rows, options.seconds, options.rate, options.rounds, options.json) == (50_000, 10.0, 1_000.0, 3, False)
    options = read_options(["--rows", "7", "--seconds", "0.5", "--rate", "20", "--rounds", "1", "--json"])
    assert (options.rows, options.seconds, options.rate, options.rounds, options.json) == (7, 0.5, 20.0, 1, True)


def test_the_tables_have_rates_and_latencies() -> None:
    figures = Figures([1000.0, 3000.0], [(1.0, 2.0), (3.0, 4.0)], [990.0, 1000.0], [500.0, 700.0])
    figures.bare["bare COMMIT"] += [(0.2, 0.5), (0.2, 0.7)]
    console = Console(width=120)
    with console.capture() as printed:
        console.print(*figures.tables())
    assert "COMMIT to acknowledgement in ms" in printed.get()
    assert "outbox of MariaDB" in printed.get()
    assert "bare COMMIT" in printed.get()
    assert "bare send" not in printed.get()
    assert figures.as_json()["latency_ms"] == [(1.0, 2.0), (3.0, 4.0)]
