"""The context of a verdict: how far its group got, and the lease, retention and delays of the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ackwise.spark.fold.facts import Committed, Facts, GroupName, View
from ackwise.spark.fold.gaps import Blindness
from ackwise.spark.frames import DataFrame, SparkSession
from ackwise.spark.judge.accounts import domains
from ackwise.spark.session.rows import rows_of

__all__ = ["Scope", "context", "delay_partitions", "drained", "scopes"]

Scope = tuple[GroupName, str, int]
"""Group, handler, dedup epoch."""

# `scope` numbers handlers within a dedup epoch.
# `start` is the first offset that the group must account for, `committed` where its commits end; null without any.
# `resumed` was committed when the judged time began.
# `drained_ts` is when its retries were last seen to be done.
# `since` is the time from which its events are known; `blind`: events of the group are missing.
# `bumped`: its handler has other dedup epochs, whose verdicts may count here.
_SCHEMA: Final = (
    "mk long, pk long, scope long, start long, committed long, resumed long, lease long, "
    "retention long, levels array<long>, drained_ts long, since long, blind boolean, bumped boolean"
)


def context(spark: SparkSession, facts: Facts, commits: Mapping[int, Committed], blind: Blindness, since: int | None = None) -> DataFrame:
    """One row per view, times in microseconds. Of the time before `since` only what a store remembered then is known."""
    expected = domains(facts, commits)
    last_drained = drained(facts, commits)
    numbers = {scope: number for number, scope in enumerate(scopes(facts))}
    rows, bumped = [], {mk for mk, _ in facts.other_epochs}
    for view in facts.views:
        group, commit = facts.groups[view.group], commits.get(view.pk)
        start = expected[view.pk][0] if view.pk in expected else None
        got = (None, None) if commit is None else (commit.highest, commit.resumed)
        promised = (group.lease, group.retention, list(group.levels))
        known_since = group.first_ts if since is None else max(group.first_ts, since - group.retention)
        seen = (last_drained.get(view.group), known_since, view.group in blind.groups, view.mk in bumped)
        rows.append((view.mk, view.pk, numbers[_scope(view)], start, *got, *promised, *seen))
    return rows_of(spark, rows, _SCHEMA)


def scopes(facts: Facts) -> list[Scope]:
    """Return the scopes in which dedup hashes are compared: handlers of a group, by dedup epoch. `scope` is the place in this list."""
    return sorted({_scope(view) for view in facts.views})


def delay_partitions(spark: SparkSession, facts: Facts) -> DataFrame:
    """The `pk` of each delay partition and, as `before`, when its group's retry partitions had been read to their ends."""
    retries = facts.retries_drained()
    delays = [pk for pk in facts.drained("delay") if facts.partitions[pk].group in retries]
    return rows_of(spark, [(pk, retries[facts.partitions[pk].group]) for pk in delays], "pk long, before long")


def drained(facts: Facts, commits: Mapping[int, Committed]) -> dict[GroupName, int]:
    """Return the time at which a group had read its delay partitions, and after them its retry partitions, to their ends."""
    times: dict[GroupName, list[int | None]] = {}
    for pk in facts.drained("delay"):
        times.setdefault(facts.partitions[pk].group, []).append(commits[pk].drained_ts if pk in commits else None)
    return {group: min(at for at in each if at is not None) for group, each in times.items() if None not in each}


def _scope(view: View) -> Scope:
    return view.group, view.handler, view.dedup_epoch
