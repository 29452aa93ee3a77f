"""The tables of attempts and of stuck claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ackwise.spark.report.attempts import Attempts, Ending
from ackwise.spark.report.details import AGES, StuckClaims
from ackwise.spark.report.page.data import AttemptRow, StuckData, StuckRow
from ackwise.spark.report.page.words import duration
from ackwise.spark.vocabulary import Verdict

__all__ = ["attempts_data", "stuck_data"]


def attempts_data(attempts: Sequence[Attempts], limit: int) -> list[AttemptRow]:
    """Return the attempts of all messages together; empty if no message took more than one."""
    total: Counter[tuple[int, Verdict]] = Counter()
    in_place: Counter[int] = Counter()
    for each in attempts:
        total.update(each.last)
        in_place.update(each.in_place)
    whole = Attempts("", "", "", total, in_place)
    if max(whole.by_number, default=1) == 1:
        return []
    rows = []
    for reached in whole.funnel[:limit]:
        endings = {str(ending): number for ending, number in reached.endings.items()}
        ended = reached.messages - reached.endings[Ending.AGAIN] - reached.endings[Ending.IN_PLACE]
        share = round(reached.messages / total.total(), 4)
        rows.append(AttemptRow(attempt=reached.attempt, reached=reached.messages, share=share, ended=ended, **endings))
    return rows


def stuck_data(stuck: Sequence[StuckClaims], limit: int) -> StuckData | None:
    """Return the writers with stuck claims, most first; empty classes of age are left out."""
    if not stuck:
        return None
    labels = [f"up to {_age(AGES[0])}", *(f"{_age(low)} – {_age(high)}" for low, high in pairwise(AGES)), f"over {_age(AGES[-1])}"]
    used = [place for place in range(len(labels)) if any(each.ages[place] for each in stuck)]
    rows = [
        StuckRow(f"{each.writer_id & (2**64 - 1):016x}", each.client, sum(each.ages), [each.ages[place] for place in used])
        for each in stuck
    ]
    return StuckData([labels[place] for place in used], rows[:limit], max(0, len(rows) - limit))


def _age(seconds: int) -> str:
    return duration(seconds * 1_000_000)
