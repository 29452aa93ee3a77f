"""The reconciliation: events in, verdicts, accounts and a report out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.sources import Evidence, read_events
from ackwise.spark.fold.folded import FoldedEvents
from ackwise.spark.frames import SparkSession
from ackwise.spark.judge.accounts import PartitionAccount, check, keep
from ackwise.spark.judge.produced import read_produced
from ackwise.spark.judging import Judgement, Progress, conclude
from ackwise.spark.report.page.render import render
from ackwise.spark.report.report import PAGE, RunReport
from ackwise.spark.report.summary import to_json
from ackwise.spark.reporting import production_of, report_of
from ackwise.spark.results.details import Judged, compute_details
from ackwise.spark.results.tables import (
    names,
)
from ackwise.spark.sample import Sampled, check_sample
from ackwise.spark.storeclaims.audit import audit
from ackwise.spark.storeclaims.comparison import Claims
from ackwise.spark.storeclaims.findings import ClaimReport
from ackwise.spark.writing import Counts, plan_repair, write_tables

__all__ = ["reconcile"]


def reconcile(
    spark: SparkSession,
    evidence: Evidence,
    *,
    out: Path,
    run_id: str,
    config: ReconcileConfig,
    produced: Path | None = None,
    claims: Claims | None = None,
    last_commits: Sequence[LastCommit] = (),
    engine: str = "spark",
    app: str = "",
    progress: Progress = lambda step: None,
) -> RunReport:
    """Judge the events of `evidence` and write tables, `plan.jsonl`, `report.html` and `summary.json` to the folder `out`.

    `produced` is a file or folder that `read_produced` takes; `claims` are compared with the verdicts; `last_commits` are those that
    the brokers keep. `engine` is the name of what `spark` is; commands on the page name the `app`. `summary.json` is written last: a
    folder that has it is complete.
    `progress` is called with each step. Raises `UnbalancedAccounts` if the verdicts do not add up, `OSError`, and what Spark raises.
    """
    produced_rows = None if produced is None else read_produced(spark, produced)
    folded = FoldedEvents(spark, evidence)
    found = conclude(spark, folded, config, evidence.logs, progress, produced_rows, last_commits)
    try:
        counts = write_tables(spark, found, out, config, progress)
        accounts = keep(found.facts, found.commits, counts.accounted, counts.absent)
        check(accounts)
        _check_sample(spark, found, evidence, config, progress)
        compared = _compare(spark, found, claims, out, config, progress)
        plan = plan_repair(spark, found, counts, out, run_id, config)
        progress("drawing the page")
        details = compute_details(spark, _judged(found, counts, accounts), out, evidence, config)
    finally:
        found.release()
    production = production_of(found, counts, "" if produced is None else str(produced))
    report = report_of(found, counts, accounts, evidence, run_id, str(out), config)
    report = replace(report, produced=production, plan=plan, details=details, claims=compared, engine=engine, app=app)
    _write_text(out / PAGE, render(report))
    _write_text(out / "summary.json", to_json(report))
    return report


def _check_sample(spark: SparkSession, found: Judgement, evidence: Evidence, config: ReconcileConfig, progress: Progress) -> None:
    if config.verify_sample:
        progress(f"judging {config.verify_sample} messages once more, by the plain algebra")
        every = read_events(spark, evidence)
        check_sample(
            spark, Sampled(found.facts, found.commits, found.blind, found.taken, found.marked, found.judged, found.every, every), config
        )


def _compare(
    spark: SparkSession, found: Judgement, claims: Claims | None, out: Path, config: ReconcileConfig, progress: Progress
) -> ClaimReport | None:
    if claims is None:
        return None
    progress(f"comparing the claims in {claims.store}")
    return audit(
        claims,
        found.facts,
        found.known,
        found.every,
        names(spark, found.facts),
        out,
        config,
    )


def _judged(found: Judgement, counts: Counts, accounts: Sequence[PartitionAccount]) -> Judged:
    return Judged(
        facts=found.facts,
        holes=found.holes,
        events=found.events,
        messages=found.messages,
        judged=found.judged.where("concerned"),
        settled=found.settled,
        accounts=accounts,
        tallies=counts.kinds,
        latencies=counts.latencies,
        findings=counts.findings,
        missing=counts.missing,
    )


def _write_text(path: Path, text: str) -> None:
    """Write the whole file or none of it."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
