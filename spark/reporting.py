"""The report of a run, put together from its judgement and its counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final

from ackwise.middleware.duration import format_duration
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.schema import micros
from ackwise.spark.events.sources import Evidence
from ackwise.spark.fold.facts import Facts, GroupName, WriterFate
from ackwise.spark.instants import as_datetime
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Orphans, Production, keep_produced
from ackwise.spark.judging import Judgement
from ackwise.spark.report.report import RunReport
from ackwise.spark.results.values import finding_of, logical_of, missing_of, retry_accounts_of
from ackwise.spark.writing import Counts

__all__ = ["production_of", "report_of"]

_NAMED: Final = 3  # ranges in a sentence


def report_of(
    found: Judgement,
    counts: Counts,
    accounts: Sequence[PartitionAccount],
    evidence: Evidence,
    run_id: str,
    output: str,
    config: ReconcileConfig,
) -> RunReport:
    """Return the report of a run, without its plan, its details and the comparison with a claim store."""
    facts = found.facts
    return RunReport(
        run_id=run_id,
        as_of=facts.as_of,
        roots=[str(root) for root in evidence.roots],
        files=len(evidence.files),
        bytes=evidence.size,
        writers=facts.writers,
        missing_events=_missing_events(found),
        holes=found.holes,
        absent={writer_id: group for writer_id, ((_, group), _) in facts.absent.items()},
        accounts=accounts,
        tallies=counts.tallies,
        findings=[finding_of(row) for row in counts.findings],
        doubtful=[finding_of(row) for row in counts.doubtful],
        missing=[missing_of(row) for row in counts.missing],
        listed=config.listed,
        logical=logical_of(facts, counts.logical),
        retry_accounts=retry_accounts_of(facts, counts.copies),
        dead_letters=counts.dead_letters,
        delays=counts.delays,
        timeline=counts.timeline if counts.timeline.counts else None,
        unreadable=evidence.unreadable,
        warnings=_warnings(found, counts, evidence, config),
        unbounded=_unbounded(found),
        output=output,
        config=config,
    )


def production_of(found: Judgement, counts: Counts, path: str) -> Production | None:
    """Return the accounts of what was produced, or None if nothing says so. `path` is that of the table, empty without one."""
    if found.produced is None:
        return None
    return Production(
        path=path,
        accounts=keep_produced(found.facts.partitions, counts.accounts, found.produced.partitions(found.facts)),
        unpublished=found.produced.unpublished,
        unread=found.produced.unread(found.facts),
        orphans=[Orphans(row["group_id"], row["topic"], row["partition"], row["start"], row["end"]) for row in counts.orphans],
        unsent=found.produced.unsent_counts,
    )


def _warnings(found: Judgement, counts: Counts, evidence: Evidence, config: ReconcileConfig) -> list[str]:
    sentences = []
    if config.since is not None:
        begin = datetime.fromtimestamp(config.since, UTC)
        sentences.append(f"only what has happened since {begin:%Y-%m-%d %H:%M:%S} UTC was judged, and what was still open then")
        if micros(config.since) > found.facts.as_of:
            sentences.append("no event is as late as that: give an earlier --since, or see whether the workers still export")
    if found.holes:
        sentences.append(_missing_sentence(found))
    sentences += _clock_sentences(found.facts)
    if unproved := [writer for writer in found.facts.writers if writer.fate is WriterFate.DEAD and writer.named_to is None]:
        who = (
            "1 worker died, and no commit says how far its"
            if len(unproved) == 1
            else f"{len(unproved)} workers died, and no commit says how far their"
        )
        sentences.append(f"{who} events went: a missing last file would not be noticed; --brokers asks for the last commits")
    if evidence.foreign:
        sentences.append(
            f"{len(evidence.foreign)} Parquet files, such as {evidence.foreign[0]}, are not named as events are and were not read"
        )
    if fallen := counts.fallen:
        first = min((found.facts.partitions[pk] for pk in fallen), key=lambda each: (each.group, each.topic, each.partition))
        sentences.append(
            f"the records of {len(fallen)} partitions, such as {first.topic}/{first.partition} of {first.group[1]}, get older as offsets "
            "grow: if the topic was recreated, offsets of two topics are taken for one here, so keep the events of the older one apart"
        )
    if found.produced is not None and (unread := found.produced.unread(found.facts)):
        sentences.append(f"{unread} records were produced to partitions that no group has read, by these events, and were not judged")
    if unbounded := _unbounded(found):
        sentences.append(
            f"{', '.join(unbounded)} consumes in a share group, which commits no offsets: of records that no worker received nothing is "
            "known; give --produced"
        )
    if found.strange:
        sentences.append(f"{found.strange} events were passed over: this version does not know what they mean")
    return sentences


def _clock_sentences(facts: Facts) -> list[str]:
    """Return whose clocks are wrong, and what follows."""
    clocks, sentences = facts.clocks, []
    kinds = [
        (clocks.fast, "is {} fast, by the records that it consumed"),
        (clocks.slow, "is {} slow, by the records that it consumed"),
        (clocks.was_set, "was set by {} while it ran"),
    ]
    for wrong, how in kinds:
        if wrong:
            sentences.append(f"the clock of {_writers_named(facts, wrong)} {how.format(format_duration(max(wrong.values()) // 10**6))}")
    if clocks.absurd:
        told = as_datetime(next(iter(clocks.absurd.values())))
        sentences.append(f"the clock of {_writers_named(facts, clocks.absurd)} says {told:%Y-%m-%d}")
    contested = sum(writer.is_contested for writer in facts.writers)
    who = "1 worker lives" if contested == 1 else f"{contested} workers live"
    whose = f"; whether {who} depends on that, and nothing that needs it is proved" if contested else ""
    return [f"{sentence}: set it right, or give --as-of{whose}" for sentence in sentences]


def _writers_named(facts: Facts, writers: Collection[int]) -> str:
    clients = {writer.writer_id: writer.client for writer in facts.writers}
    first = min(writers)
    named = f"{clients.get(first, '')} {first & (2**64 - 1):016x}".strip()
    return f"{named} and {len(writers) - 1} more" if len(writers) > 1 else named


def _unbounded(found: Judgement) -> list[str]:
    """Return the groups whose sources have no commits by which a record that nobody received would be missed.

    A table says what was produced, and so do events, if they are about one of these sources.
    """
    told = set[GroupName]()
    if found.produced is not None:
        if any(extent.is_listed for extent in found.produced.extents):
            return []
        told = {found.facts.partitions[pk].group for pk in found.produced.partitions(found.facts)}
    return sorted(group.name[1] for group in found.facts.groups.values() if group.shares and group.name not in told)


def _missing_sentence(found: Judgement) -> str:
    """Return which events are missing, of whom, and what follows."""
    clients = {writer.writer_id: writer.client for writer in found.facts.writers}
    some = [
        f"{hole.first} to {hole.after - 1} of {clients.get(hole.writer_id, '')} {hole.writer_id & (2**64 - 1):016x}".replace("  ", " ")
        for hole in found.holes[:_NAMED]
    ]
    more = [f"{len(found.holes) - _NAMED} more ranges"] if len(found.holes) > _NAMED else []
    writers = len({hole.writer_id for hole in found.holes})
    who, whose = ("1 worker", "its") if writers == 1 else (f"{writers} workers", "their")
    return (
        f"{_missing_events(found)} events of {who} are missing, {', '.join(some + more)}: find {whose} files; what depends on them is "
        "UNKNOWN_EXPORT_GAP"
    )


def _missing_events(found: Judgement) -> int:
    return sum(hole.after - hole.first for hole in found.holes)
