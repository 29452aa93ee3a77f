"""This run beside the earlier ones on the same folders."""

from __future__ import annotations

from ackwise.spark.report.earlier import EarlierRun
from ackwise.spark.report.page.charts import Lane, Lanes
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.tone import Tone
from ackwise.spark.report.words import instant

__all__ = ["runs", "runs_lanes"]


def runs(report: RunReport) -> list[EarlierRun]:
    """Return the runs, the oldest first and this one last; empty if it is the first."""
    if not report.details.earlier:
        return []
    this = EarlierRun(report.run_id, report.as_of, report.exit_code, report.anomalies, report.ambiguous, report.verdicts)
    return [*report.details.earlier, this]


def runs_lanes(compared: list[EarlierRun]) -> Lanes:
    """Return a lane for each number that should stay low, and one for all messages, with a bar for each run."""
    times = [instant(run.as_of).removesuffix(" UTC") if run.as_of else "no event" for run in compared]
    lanes = [
        _lane("anomalies", "bad", [run.anomalies for run in compared]),
        _lane("unknown", "doubt", [run.unknown for run in compared]),
        _lane("in doubt", "doubt", [run.ambiguous for run in compared]),
        _lane("messages", "plain", [run.messages for run in compared]),
    ]
    sentence = f"Beside the run before: {'; '.join(_change(lane) for lane in lanes)}. One bar is one run; each row has a scale of its own."
    return Lanes(sentence, (times[0], "", times[-1]), times, lanes, 0)


def _lane(name: str, tone: Tone, numbers: list[int]) -> Lane:
    summary = f"{numbers[-1]:,} now, {numbers[-2]:,} before"
    description = f"From the oldest run to this one: {', '.join(f'{number:,}' for number in numbers)}."
    return Lane(name, "", tone if any(numbers) else "plain", summary, description, numbers)


def _change(lane: Lane) -> str:
    more = lane.numbers[-1] - lane.numbers[-2]
    changed = f"{abs(more):,} {'more' if more > 0 else 'fewer'}" if more else "unchanged"
    return f"{lane.name} {lane.numbers[-1]:,}, {changed}"
