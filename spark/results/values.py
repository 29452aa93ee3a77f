"""The values of a report, made from rows of Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.messages import REASONS
from ackwise.spark.frames import Row
from ackwise.spark.judge.context import scopes
from ackwise.spark.report.copies import RetryAccount
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.report import OWN_REASON, DeadLetters, Finding, LogicalFinding, Missing, Tally
from ackwise.spark.vocabulary import CopyFate, Flag, LogicalVerdict, Verdict

__all__ = ["dead_letters_of", "delays_of", "finding_of", "logical_of", "missing_of", "retry_accounts_of", "tallies_of"]


def tallies_of(facts: Facts, rows: Iterable[Row]) -> list[Tally]:
    """Return the number of messages of each kind by handler and topic."""
    views = {view.mk: view for view in facts.views}
    found: Counter[tuple[str, str, str, Verdict, Flag]] = Counter()
    for row in rows:
        view = views[row["mk"]]
        topic = facts.partitions[view.pk].topic
        found[view.group[1], view.handler, topic, Verdict(row["verdict"]), Flag(row["flags"])] += row["count"]
    return [Tally(*kind, number) for kind, number in sorted(found.items())]


def retry_accounts_of(facts: Facts, rows: Iterable[Row]) -> list[RetryAccount]:
    """Return the retry accounts of each handler and topic, by the attempt that was sent back."""
    views, found = {view.mk: view for view in facts.views}, defaultdict[tuple[str, str, str, int], Counter[CopyFate]](Counter)
    for row in rows:
        view = views[row["mk"]]
        found[view.group[1], view.handler, facts.partitions[view.pk].topic, row["attempt"]][CopyFate(row["fate"])] += row["count"]
    return [RetryAccount(*kind, {fate: fates[fate] for fate in CopyFate}) for kind, fates in sorted(found.items())]


def dead_letters_of(facts: Facts, rows: Iterable[Row]) -> list[DeadLetters]:
    """Return the number of dead letters by handler and reason."""
    named, known = {number: reason for reason, number in REASONS.items()}, scopes(facts)
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row["reason"] is not None:
            (_, group), handler, _ = known[row["scope"]]
            found[group, handler, named.get(row["reason"], OWN_REASON)] += row["count"]
    return [DeadLetters(*kind, messages) for kind, messages in sorted(found.items())]


def delays_of(facts: Facts, rows: Iterable[Row]) -> list[Delays]:
    """Return the lateness of retries by handler."""
    known, found = scopes(facts), defaultdict[tuple[str, str], Counter[int]](Counter)
    for row in rows:
        if row["late"] is not None:
            (_, group), handler, _ = known[row["scope"]]
            found[group, handler][row["late"]] += row["count"]
    return [Delays(*kind, dict(sorted(late.items()))) for kind, late in sorted(found.items())]


def finding_of(row: Row) -> Finding:
    """Return one message that needs a look."""
    return Finding(
        group=row["group_id"],
        handler=row["handler"],
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        verdict=Verdict(row["verdict"]),
        flags=Flag(row["flags"]),
        attempt=row["attempt"],
        last_event=row["last_event"],
        last_ts=row["last_ts"],
        overtaken_by=row["overtaken_by"],
    )


def missing_of(row: Row) -> Missing:
    """Return a range of offsets without any event."""
    return Missing(row["group_id"], row["topic"], row["partition"], row["start"], row["end"], Verdict[row["verdict"]])


def logical_of(facts: Facts, rows: Iterable[Row]) -> list[LogicalFinding]:
    """Return the numbers of each handler's dedup hashes by logical verdict."""
    known, found = scopes(facts), list[LogicalFinding]()
    for row in sorted(rows, key=lambda row: (row["scope"], row["logical_verdict"], row["logical_flags"])):
        (_, group), handler, _ = known[row["scope"]]
        found.append(LogicalFinding(group, handler, LogicalVerdict(row["logical_verdict"]), Flag(row["logical_flags"]), row["count"]))
    return found
