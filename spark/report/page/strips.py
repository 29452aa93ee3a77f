"""The strips of the partitions: offsets from left to right, with a mark where one is lost, unknown or open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.report.strips import Strip
from ackwise.spark.report.tone import Tone
from ackwise.spark.report.words import counted
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, UNDER_WAY, Verdict

__all__ = ["Drawn", "Mark", "strips_drawn"]


class Mark(NamedTuple):
    """Bins of a strip that lie side by side and are of one tone: the first, and how many."""

    at: int
    number: int
    tone: Tone


class Drawn(NamedTuple):
    """One partition from its first offset that is accounted for to the last."""

    account: PartitionAccount
    bins: int
    marks: Sequence[Mark]
    assigned: Sequence[int]
    revoked: Sequence[int]
    summary: str
    description: str


def strips_drawn(strips: Sequence[Strip]) -> list[Drawn]:
    """Return the strips that have offsets, most anomalies first."""
    there = [strip for strip in strips if strip.account.expected]
    return [_drawn(strip) for strip in sorted(there, key=lambda strip: (-strip.anomalies, -strip.unknown))]


def _drawn(strip: Strip) -> Drawn:
    account, bins = strip.account, -(-strip.account.expected // strip.width)
    found = [f"{number:,} {word}" for number, word in ((strip.anomalies, "anomalous"), (strip.unknown, "unknown")) if number]
    assigned, revoked = ([place for place in places if 0 <= place <= bins] for places in (strip.assigned, strip.revoked))
    moves = len(strip.assigned) + len(strip.revoked)
    where = f"; {counted(len(strip.assigned), 'place')} where it was got, {len(strip.revoked)} where it was given up" if moves else ""
    summary = ", ".join(found) or "no anomaly"
    description = f"Offsets {account.start:,} to {account.committed - 1:,}, {strip.width:,} in each bin: {summary}{where}."
    return Drawn(account, bins, _marks(strip.bins), assigned, revoked, summary, description)


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
