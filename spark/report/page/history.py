"""This run beside the earlier ones on the same folders."""

from __future__ import annotations

from typing import Final

from ackwise.spark.report.earlier import EarlierRun
from ackwise.spark.report.page.data import RunRow
from ackwise.spark.report.page.tone import Tone
from ackwise.spark.report.page.words import instant
from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import LOSSES, ExitCode, Verdict

__all__ = ["OUTCOMES", "runs_data"]

#: The name and the tone of each exit code.
OUTCOMES: Final[dict[ExitCode, tuple[str, Tone]]] = {
    ExitCode.CLEAN: ("clean", "good"),
    ExitCode.ANOMALIES: ("anomalies", "bad"),
    ExitCode.ERROR: ("not done", "bad"),
    ExitCode.INCONCLUSIVE: ("inconclusive", "doubt"),
}


def runs_data(report: RunReport) -> list[RunRow]:
    """Return the runs, the oldest first and this one last; empty if it is the first."""
    if not report.details.earlier:
        return []
    this = EarlierRun(report.run_id, report.as_of, report.exit_code, report.anomalies, report.ambiguous, report.verdicts)
    return [*(_row(run) for run in report.details.earlier), _row(this, is_this=True)]


def _row(run: EarlierRun, *, is_this: bool = False) -> RunRow:
    outcome, tone = OUTCOMES[run.exit_code]
    return RunRow(
        run=run.run_id,
        as_of=instant(run.as_of) if run.as_of else "no event",
        outcome=outcome,
        tone=tone,
        messages=sum(run.verdicts.values()),
        anomalies=run.anomalies,
        doubtful=run.ambiguous,
        lost=sum(number for verdict, number in run.verdicts.items() if verdict in LOSSES),
        repeated=run.verdicts.get(Verdict.MULTI_EXECUTED, 0),
        is_this=is_this,
    )
