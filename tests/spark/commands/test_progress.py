"""The progress of `reconcile`, in percent. Needs no Spark."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from ackwise.spark.commands.progress import STEPS, Progress


def told(*steps: str) -> list[str]:
    written, seconds = StringIO(), iter(range(100))
    progress = Progress(Console(file=written, width=200), clock=lambda: float(next(seconds)))
    for step in steps:
        progress(step)
    return written.getvalue().splitlines()


def test_each_step_says_how_much_is_done_and_what_follows() -> None:
    assert told("gathering the events", "judging the messages", "done") == [
        "  1.0 s    1 %  gathering the events",
        "  2.0 s   47 %  judging the messages",
        "  3.0 s  100 %  done",
    ]


def test_it_never_goes_back_not_even_if_it_judges_again() -> None:
    shares = [int(line[9:12]) for line in told("drawing the page", "judging again without 1 damaged files", "surveying the events", "done")]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (STEPS["drawing the page"], 100)
