"""Ranges of alike findings: one row for all offsets of a partition with the same verdict and evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ackwise.spark.events.numbers import joined
from ackwise.spark.report.report import Finding, RunReport
from ackwise.spark.vocabulary import Flag, Verdict

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
        alike[missing.verdict, missing.group, where, "", "no event"].append((missing.start, missing.end))
    for found in (*report.findings, *report.doubtful):
        where = f"{found.topic}/{found.partition}"
        last = f"{found.last_event}, attempt {found.attempt}" if found.attempt > 1 else found.last_event
        evidence = ", ".join([last, *(f"+{flag.name}{_by(found, flag)}" for flag in found.flags)])
        alike[found.verdict, found.group, where, found.handler, evidence].append((found.offset, found.offset + 1))
    return sorted(AlikeOffsets(*kind, _in_words(spans)) for kind, spans in alike.items())


def _by(found: Finding, flag: Flag) -> str:
    return f" by {found.overtaken_by}" if flag in Flag.OVERTAKEN | Flag.MAYBE_OVERTAKEN else ""


def _in_words(spans: Iterable[tuple[int, int]]) -> str:
    """The spans, from the first to before the second, with the last of each."""
    return ", ".join(str(first) if after == first + 1 else f"{first}–{after - 1}" for first, after in joined(spans))
