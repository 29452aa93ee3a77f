"""Messages that may have run twice, or out of turn, by their flags and not by their verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ackwise.spark.fold.facts import Writer, WriterFate
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.words import hexadecimal, messages
from ackwise.spark.vocabulary import DOUBTFUL

__all__ = ["ambiguous", "doubt_sentences", "how_to_find", "query"]

_NAMED: Final = 3  # dead workers; the page has all of them


def doubt_sentences(report: RunReport) -> list[str]:
    """Return a sentence for each kind of doubt."""
    found = [ambiguous(report)] if report.ambiguous else []
    if report.repeated:
        found.append(f"{messages(report.repeated)} ran successfully more than once, at least once without a claim that could prevent it")
    if number := report.perhaps_overtaken:
        found.append(
            f"{messages(number)} may have run after a later message of {'its' if number == 1 else 'their'} key or partition had started: "
            "clocks that differ, missing events, or a group that went back can explain it as well"
        )
    return found


def ambiguous(report: RunReport) -> str:
    """Return the number of messages with an unknown run count, and the reason."""
    number, dead = report.ambiguous, _dead_workers(report)
    return (
        f"of {messages(number)} it can't be told whether {'it' if number == 1 else 'they'} ran once or twice: an earlier worker died, or "
        f"lost its claim, before it recorded what it had done{f' (dead workers: {dead})' if dead else ''}{_fetched(report)}"
    )


def _dead_workers(report: RunReport) -> str:
    return _named([writer for writer in report.writers if writer.fate is WriterFate.DEAD])


def _fetched(report: RunReport) -> str:
    """Return whose fetched messages all count, and why; nothing if the logs show what was started."""
    holed = {hole.writer_id for hole in report.holes}
    found = [writer for writer in report.writers if writer.is_mute and (not writer.is_marked or writer.writer_id in holed)]
    return f"; all that {_named(found)} had fetched counts, since no complete log shows what had started" if found else ""


def _named(writers: Sequence[Writer]) -> str:
    named = ", ".join(f"{writer.client} {hexadecimal(writer.writer_id)}".lstrip() for writer in writers[:_NAMED])
    return f"{named} and {len(writers) - _NAMED:,} more" if len(writers) > _NAMED else named


def how_to_find(report: RunReport) -> str:
    """Return `query` for the engine that judged, behind the name of its language."""
    return f"{'Spark SQL' if report.engine == 'spark' else 'DuckDB'}: {query(report.output, report.engine)}"


def query(output: str, engine: str) -> str:
    """Return SQL that finds all of them in the tables below `output`."""
    conditions = " OR ".join(f"array_contains(flags, '{flag.name}')" for flag in DOUBTFUL)
    table = f"parquet.`{output}/verdicts`" if engine == "spark" else f"'{output}/verdicts/*.parquet'"
    return f"SELECT * FROM {table} WHERE {conditions}"
