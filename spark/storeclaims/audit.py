"""The comparison of a claim store with the events, counted and written as a table."""

from __future__ import annotations

from pathlib import Path

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.attributes import attributes, is_duration
from ackwise.spark.events.schema import micros
from ackwise.spark.fold.facts import Facts, GroupName
from ackwise.spark.frames import DataFrame, F
from ackwise.spark.judge.context import scopes
from ackwise.spark.storeclaims.comparison import Claims, by_key, claim_rows, compared, remembered
from ackwise.spark.storeclaims.findings import ClaimFinding, ClaimReport, ClaimVerdict
from ackwise.spark.vocabulary import Verdict

__all__ = ["CLAIMS", "audit"]

#: The folder of the table.
CLAIMS = "claims"


def audit(
    claims: Claims, facts: Facts, judged: DataFrame, settled: DataFrame, named: DataFrame, out: Path, config: ReconcileConfig
) -> ClaimReport:
    """Compare `claims` with the verdicts, and write the table `claims` below `out`. Raises what Spark raises."""
    every, grace = scopes(facts), micros(config.grace)
    today = {number: _shortest(facts, scope[0], config) for number, scope in enumerate(every) if scope[2] == 0}
    rows = claims.rows.persist()
    ((now,),) = rows.groupBy().agg(F.max("now")).collect()
    found = compared(by_key(judged, today), remembered(rows), facts.as_of, facts.as_of if now is None else now, grace).persist()
    try:
        counted = found.groupBy("scope", "finding", "is_known", "should_be").count().collect()
        without_claims = {row["scope"] for row in counted if row["should_be"]} - {row["scope"] for row in counted if row["is_known"]}
        # A store of another group and one that was emptied look alike.
        comparable = found.where(~F.col("scope").isin(list(without_claims))) if without_claims else found
        table = claim_rows(comparable, settled, named, rows)
        table.write.mode("overwrite").parquet(str(out / CLAIMS))
        order = ["finding", "group_id", "topic", "partition", "offset", "handler", "cluster", "topic_id", "key"]
        first = table.orderBy(*order).limit(config.listed).collect()
    finally:
        found.unpersist()
        rows.unpersist()
    counts = {
        kind: number
        for kind in ClaimVerdict
        if (number := sum(row["count"] for row in counted if row["finding"] == kind and row["scope"] not in without_claims))
    }
    return ClaimReport(
        store=claims.store,
        claims=sum(row["count"] for row in counted if row["is_known"] or row["scope"] is None),
        known=sum(row["count"] for row in counted if row["is_known"]),
        counts=counts,
        findings=[_finding(row.asDict()) for row in first],
        without_claims=sorted(_name(every[number]) for number in without_claims),
        later=sorted(_name(scope) for scope in every if scope[2] != 0),
    )


def _shortest(facts: Facts, group: GroupName, config: ReconcileConfig) -> int:
    """Return the shortest time that the store keeps an outcome, in microseconds: sessions may be configured differently."""
    longest = facts.groups[group].retention
    if config.retention is not None:
        return longest
    sessions = [row.session for row in facts.rows if row.session and (row.cluster, row.group_id) == group]
    return min([longest, *(micros(time) for session in sessions if (time := _retention(session)) is not None)])


def _retention(session: str) -> float | None:
    time = attributes(session).get("retention")
    return float(time) if time is not None and is_duration(time) else None


def _finding(row: dict[str, object]) -> ClaimFinding:
    return ClaimFinding(
        group=str(row["group_id"]),
        handler=str(row["handler"]),
        topic=str(row["topic"]),
        partition=int(str(row["partition"])),
        offset=int(str(row["offset"])),
        finding=ClaimVerdict[str(row["finding"])],
        verdict=Verdict[str(row["verdict"])],
        key=None if row["key"] is None else str(row["key"]),
    )


def _name(scope: tuple[tuple[str, str], str, int]) -> str:
    (_, group), handler, _ = scope
    return f"{handler} in {group}"
