"""The strips of the partitions: offsets from left to right, with a mark where one is lost, unknown or open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ackwise.spark.report.page.drawings import Mark, StripRow, StripsData
from ackwise.spark.report.page.tone import Tone
from ackwise.spark.report.page.words import counted
from ackwise.spark.report.strips import Strip
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, UNDER_WAY, Verdict

__all__ = ["strips_data"]

#: Strips that are drawn; a page must not grow with the cluster.
_MOST_ROWS: Final = 60


def strips_data(strips: Sequence[Strip]) -> StripsData | None:
    """Return the strips, most anomalies first; None without any offset."""
    there = [strip for strip in strips if strip.book.expected]
    if not there:
        return None
    ordered = sorted(there, key=lambda strip: (-strip.anomalies, -strip.unknown))
    sentence = (
        "Each strip is a partition, from its first offset that is booked to its last: a mark of full height is an anomaly, a lower one is "
        "unknown, a low one is still under way. Lines above it are where a worker got the partition, lines below it where one gave it up: "
        "what goes wrong beside them goes wrong in a rebalance."
    )
    return StripsData(sentence, [_row(strip) for strip in ordered[:_MOST_ROWS]], max(0, len(ordered) - _MOST_ROWS))


def _row(strip: Strip) -> StripRow:
    book, bins = strip.book, -(-strip.book.expected // strip.width)
    found = [f"{number:,} {word}" for number, word in ((strip.anomalies, "anomalous"), (strip.unknown, "unknown")) if number]
    moves = len(strip.assigned) + len(strip.revoked)
    where = f"; {counted(len(strip.assigned), 'place')} where it was got, {len(strip.revoked)} where it was given up" if moves else ""
    summary = ", ".join(found) or "no anomaly"
    return StripRow(
        group=book.partition.group[1],
        partition=f"{book.partition.topic}/{book.partition.partition}",
        first=book.start,
        end=book.committed,
        bins=bins,
        marks=_marks(strip.bins),
        assigned=[place for place in strip.assigned if 0 <= place <= bins],
        revoked=[place for place in strip.revoked if 0 <= place <= bins],
        summary=summary,
        description=f"Offsets {book.start:,} to {book.committed - 1:,}, {strip.width:,} in each bin: {summary}{where}.",
    )


def _marks(bins: Mapping[int, Mapping[Verdict, int]]) -> list[Mark]:
    """Return the marks; neighbours of one tone become one."""
    found: list[Mark] = []
    for place, verdicts in sorted(bins.items()):
        tone = _tone(verdicts)
        if tone is None:
            continue
        last = found[-1] if found else None
        if last is not None and last.tone == tone and last.at + last.number == place:
            found[-1] = Mark(last.at, last.number + 1, tone)
        else:
            found.append(Mark(place, 1, tone))
    return found


def _tone(verdicts: Mapping[Verdict, int]) -> Tone | None:
    """Return the tone of the worst verdict, or None if no mark is needed."""
    for kinds, tone in _TONES.items():
        if any(number and verdict in kinds for verdict, number in verdicts.items()):
            return tone
    return None


_TONES: Final[dict[frozenset[Verdict], Tone]] = {ANOMALIES: "bad", INCONCLUSIVE: "doubt", UNDER_WAY: "plain"}
