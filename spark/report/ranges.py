"""Ranges of alike findings: one row for all offsets of a partition with the same verdict and evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import Verdict

__all__ = ["AlikeOffsets", "alike_offsets"]


@dataclass(frozen=True, slots=True, order=True)
class AlikeOffsets:
    """Offsets of one partition, all with one verdict on the same evidence."""

    verdict: Verdict
    group: str
    partition: str
    """Topic and number, such as `orders/3`."""
    handler: str
    evidence: str
    offsets: str
    """Such as `3–4, 9`."""


def alike_offsets(report: RunReport) -> list[AlikeOffsets]:
    """Return the listed findings as ranges, worst first."""
    alike: dict[tuple[Verdict, str, str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for missing in report.missing:
        where = f"{missing.topic}/{missing.partition}"
        alike[missing.verdict, missing.group, where, "", "no event"].append((missing.start, missing.end - 1))
    for found in (*report.findings, *report.doubtful):
        where = f"{found.topic}/{found.partition}"
        last = f"{found.last_event}, attempt {found.attempt}" if found.attempt > 1 else found.last_event
        evidence = ", ".join([last, *(f"+{flag.name}" for flag in found.flags)])
        alike[found.verdict, found.group, where, found.handler, evidence].append((found.offset, found.offset))
    return sorted(AlikeOffsets(*kind, _joined(spans)) for kind, spans in alike.items())


def _joined(spans: Iterable[tuple[int, int]]) -> str:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in joined)
