"""Each update finds what the batch job finds over the same events, and no failure ends them."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from tests.spark.cases import CASES
from tests.spark.follow.test_webhook import Server, hook
from tests.spark.fuzz import universe
from tests.spark.histories import History, write_parquet
from tests.spark.local.test_engine import results
from tests.spark.reconciling import name_of, reconciled, root_of

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.spark.commands.options import EngineName
from ackwise.spark.commands.run import Request, new_run_id, run
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.sources import NoEvents
from ackwise.spark.follow.alarms import Change
from ackwise.spark.follow.folder import opened
from ackwise.spark.follow.following import Following
from ackwise.spark.follow.metrics import Standing
from ackwise.spark.follow.ranges import Findings, both, minus, size, union
from ackwise.spark.follow.red import red_of
from ackwise.spark.follow.webhook import Webhook
from ackwise.spark.report.report import RunReport
from ackwise.spark.session.engine import HEAP, LOCAL, Engine
from ackwise.spark.vocabulary import ANOMALIES, ExitCode

CLEAN = "RECEIVED_RANGE[0,2) 0:CS 1:CS W=2"
LOST = "RECEIVED_RANGE[0,2) 0:CS 1:CF W=2"


@dataclass
class Notes:
    """Keeps what it is told, and the time."""

    shown: list[tuple[ExitCode, Change]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    time: float = 0.0

    def audited(self, report: RunReport, change: Change, now: float, took: float) -> None:
        self.shown.append((report.exit_code, change))

    def failed(self, sentence: str) -> None:
        self.said.append(sentence)

    @property
    def lines(self) -> list[list[str]]:
        """The verdicts that were new in each update."""
        return [sorted(kind.verdict for kind in change.new) for _, change in self.shown]


def requested(root: Path, *, engine: EngineName = EngineName.LOCAL, **config: Any) -> Request:
    return Request([root], ReconcileConfig(**config), None, None, None, engine, Engine(LOCAL, HEAP, {}))


def judging(request: Request) -> Callable[[Path, str], RunReport]:
    return lambda folder, run_id: run(request, folder, run_id, lambda step: None)


@contextmanager
def following(
    out: Path, judge: Callable[[Path, str], RunReport], notes: Notes, *, lateness: float = 0.0, webhook: Webhook | None = None, **more: Any
) -> Iterator[Following]:
    with opened(out) as folder:
        yield Following(
            judge, new_run_id, folder, notes, Standing(["/events"]), lateness, 60.0, webhook=webhook,
            clock=lambda: notes.time, now=lambda: 1000.0 + notes.time, **more,
        )  # fmt: skip


def updates(*steps: Callable[[], object]) -> Callable[[float], bool]:
    """Between two updates one of these happens; after the last it is ended."""
    left = list(steps)

    def wait(seconds: float) -> bool:
        if not left:
            return True
        left.pop(0)()
        return False

    return wait


def nothing() -> None:
    """Nothing happens."""


def write(root: Path, words: str) -> None:
    shutil.rmtree(root / "events", ignore_errors=True)
    root_of(root, History("g").say("w1", words))


@cache
def files(parts: int) -> list[list[tuple[str, list[dict[str, Any]]]]]:
    """The events of many groups in files, by name, as each writer writes them in so many parts of a day."""
    histories = [case.history for case in list(CASES.values())[::4]] + [universe(number) for number in range(7000, 7008)]
    by_writer = defaultdict[int, list[dict[str, Any]]](list)
    for event in sorted((event for history in histories for event in history.events), key=lambda event: event["seq"]):
        by_writer[event["writer_id"]].append(event)
    found: list[list[tuple[str, list[dict[str, Any]]]]] = [[] for _ in range(parts)]
    for writer, events in by_writer.items():
        for number in range(parts):
            if part := events[len(events) * number // parts : len(events) * (number + 1) // parts]:
                found[number].append((name_of(writer, part[0]["seq"], part[-1]["seq"]), part))
    return found


def by_verdict(findings: Findings) -> dict[str, int]:
    """The number of offsets with each verdict, without what is only red with `--strict`, and keys that ran twice."""
    names = {verdict.name for verdict in ANOMALIES}
    found = Counter[str]()
    for kind, ranges in findings.items():
        found[kind.verdict] += size({kind: ranges})
    return {name: number for name, number in found.items() if name in names}


def arrive(root: Path, number: int, parts: int) -> None:
    """The files of one part come."""
    for name, events in files(parts)[number]:
        write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / name, events)


def test_each_update_finds_what_the_batch_finds_over_the_same_events_and_each_finding_is_named_once(tmp_path: Path) -> None:
    root, notes, batches = tmp_path / "root", Notes(), list[tuple[Path, int, Path]]()

    def judge(folder: Path, run_id: str) -> RunReport:
        report = judging(requested(root, strict=True))(folder, run_id)
        out = tmp_path / f"batch-{len(batches)}"
        batches.append((out, reconciled(root, "--engine", "local", "--strict", "--out", out).exit_code, folder))
        assert results(folder) == results(out)
        return report

    arrive(root, 0, 2)
    with following(tmp_path / "out", judge, notes) as follower:
        code = follower.follow(updates(partial(arrive, root, 1, 2)))
    assert [shown for shown, _ in notes.shown] == [batch for _, batch, _ in batches]
    assert len(notes.shown) == 2
    assert code == batches[-1][1] == 1
    standing: Findings = {}
    for _, change in notes.shown:
        assert both(standing, change.new) == {}
        assert minus(change.gone, standing) == {}
        standing = union(minus(standing, change.gone), change.new)
    last = follower.last
    assert last is not None
    red = red_of(last)
    assert minus(red.present, standing) == {}
    assert {verdict.name: last.verdicts[verdict] for verdict in ANOMALIES & set(last.verdicts)} == by_verdict(red.present)
    assert notes.said == []


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_spark_finds_what_the_local_engine_finds(tmp_path: Path) -> None:
    root, notes, pairs = tmp_path / "root", Notes(), list[tuple[dict[str, Any], dict[str, Any]]]()
    history = History("g").say("w1", "RECEIVED_RANGE[0,9) 0:CS 1:CF 2:CFB W=3").say("w2", "3:C")
    begun = len(history.events)
    history.say("w1", "2@2:CS 4:CS 5:CFX 6:CS W=7").say("w2", "3:S 7:CF")

    def judge(folder: Path, run_id: str) -> RunReport:
        report = judging(requested(root, engine=EngineName.SPARK))(folder, run_id)
        reconciled(root, "--engine", "local", "--out", tmp_path / f"batch-{len(pairs)}")
        pairs.append((results(folder), results(tmp_path / f"batch-{len(pairs)}")))
        return report

    def write_part(events: list[dict[str, Any]]) -> None:
        part = History("g")
        part.events = events
        root_of(root, part)

    write_part(history.events[:begun])
    with following(tmp_path / "out", judge, notes) as follower:
        follower.follow(updates(partial(write_part, history.events[begun:])))
    assert notes.said == []
    assert pairs[0][0]["summary"]["verdicts"] == {"LOST": 1, "IN_FLIGHT": 1, "RETRYING": 1, "EXACTLY_ONCE": 1}
    assert pairs[1][0]["summary"]["verdicts"]["EXACTLY_ONCE"] == 5
    for spark, local in pairs:
        assert {name for name, value in spark["summary"].items() if value != local["summary"][name]} == set()
        assert spark == local


def test_an_anomaly_is_told_once_and_its_end_too(tmp_path: Path) -> None:
    root, notes = tmp_path / "root", Notes()
    write(root, CLEAN)
    steps = updates(partial(write, root, LOST), nothing, partial(write, root, CLEAN), nothing)
    with following(tmp_path / "out", judging(requested(root)), notes) as follower:
        assert follower.follow(steps) is ExitCode.CLEAN
    assert [code for code, _ in notes.shown] == [0, 1, 1, 0, 0]
    assert notes.lines == [[], ["LOST"], [], [], []]
    assert [sorted(kind.verdict for kind in change.gone) for _, change in notes.shown] == [[], [], [], ["LOST"], []]


def test_a_provisional_finding_is_told_once_it_is_older_than_the_lateness(tmp_path: Path) -> None:
    root, notes = tmp_path / "root", Notes()
    write(root, LOST)

    def later() -> None:
        notes.time += 1800

    with following(tmp_path / "out", judging(requested(root, lateness=3600.0)), notes, lateness=3600.0) as follower:
        assert follower.follow(updates(later, later, later)) is ExitCode.ANOMALIES
    assert notes.lines == [[], [], ["LOST"], []]


def test_it_can_end_at_the_first_alarm(tmp_path: Path) -> None:
    root, notes = tmp_path / "root", Notes()
    write(root, CLEAN)
    with following(tmp_path / "out", judging(requested(root)), notes, fail_fast=True) as follower:
        assert follower.follow(updates(nothing, partial(write, root, LOST), nothing, nothing)) is ExitCode.ANOMALIES
    assert [code for code, _ in notes.shown] == [0, 0, 1]


def test_an_update_that_fails_is_reported_and_leaves_the_last_audit(tmp_path: Path) -> None:
    root, notes, out = tmp_path / "root", Notes(), tmp_path / "out"
    write(root, CLEAN)
    metrics, kept = tmp_path / "audit.prom", []

    def fail() -> None:
        kept.append((out / "summary.json").read_text())
        shutil.move(root / "events", root / "away")
        notes.time += 90

    def mend() -> None:
        kept.append((out / "summary.json").read_text())
        assert 'ackwise_audit_failed_updates{events="/events"} 1' in metrics.read_text()
        assert 'ackwise_audit_updated_timestamp_seconds{events="/events"} 1000.0' in metrics.read_text()
        shutil.move(root / "away", root / "events")

    with following(out, judging(requested(root)), notes, metrics_file=metrics) as follower:
        assert follower.follow(updates(fail, mend)) is ExitCode.CLEAN
    (sentence,) = notes.said
    assert sentence.startswith("audit failed, the last is 90 s old: ")
    assert sentence.endswith("next try in 60 s")
    assert kept[0] == kept[1]
    assert len(notes.shown) == 2
    assert 'ackwise_audit_failed_updates{events="/events"} 0' in metrics.read_text()
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == [".lock", "report.html", "summary.json"]


def test_whatever_fails_in_an_update_it_goes_on(tmp_path: Path) -> None:
    root, notes, errors = tmp_path / "root", Notes(), [OSError(28, "No space left on device", "/out/verdicts"), AckwiseError("it failed")]
    write(root, CLEAN)

    def judge(folder: Path, run_id: str) -> RunReport:
        if errors:
            (folder / "verdicts").mkdir(parents=True)
            raise errors.pop(0)
        return judging(requested(root))(folder, run_id)

    with following(tmp_path / "out", judge, notes) as follower:
        assert follower.follow(updates(nothing, nothing)) is ExitCode.CLEAN
    full, failed = notes.said
    assert "No space left on device" in full
    assert "it failed" in failed
    assert "none has succeeded yet" in failed
    assert len([path for path in (tmp_path / "out").iterdir() if path.is_dir()]) == 1


def test_events_that_are_not_there_yet_are_waited_for_and_no_audit_is_no_success(tmp_path: Path) -> None:
    root, notes = tmp_path / "root", Notes()
    root.mkdir()
    with following(tmp_path / "out", judging(requested(root)), notes) as follower, pytest.raises(AckwiseError, match="no audit was done"):
        follower.follow(updates(nothing))
    assert len(notes.said) == 2
    assert "there are no events below" in notes.said[0]
    write(root, CLEAN)
    with following(tmp_path / "out", judging(requested(root)), notes) as follower:
        assert follower.follow(updates(partial(shutil.rmtree, root))) is ExitCode.INCONCLUSIVE  # what could not be renewed is not clean


def test_what_no_later_update_can_mend_ends_it_at_the_first(tmp_path: Path) -> None:
    def judge(folder: Path, run_id: str) -> RunReport:
        raise ConfigurationError("reconcile needs duckdb")

    with following(tmp_path / "out", judge, Notes()) as follower, pytest.raises(ConfigurationError, match="needs duckdb"):
        follower.follow(updates(nothing))
    assert issubclass(NoEvents, ConfigurationError)


def test_an_alarm_that_the_webhook_did_not_take_is_in_the_next_post_and_none_is_posted_twice(tmp_path: Path) -> None:
    root, notes, out = tmp_path / "root", Notes(), tmp_path / "out"
    write(root, LOST)
    metrics = tmp_path / "audit.prom"

    def undelivered() -> None:
        assert 'ackwise_audit_undelivered_alarms{events="/events"} 1' in metrics.read_text()

    with Server(500, 500, 500, 200) as server:
        with following(out, judging(requested(root)), notes, webhook=hook(server.url), metrics_file=metrics) as follower:
            follower.follow(updates(undelivered, nothing))
        with following(out, judging(requested(root)), notes, webhook=hook(server.url)) as again:  # after a restart
            again.follow(updates(partial(write, root, CLEAN)))
    assert [sentence.split(";")[0] for sentence in notes.said] == ["the alarm was not delivered: webhook at 127.0.0.1: status 500"]
    alarm, end = server.taken
    assert alarm["new"] == [{"verdict": "LOST", "group": "g", "handler": "bill", "place": "orders/0", "number": 1, "offsets": [[1, 2]]}]
    assert "new: LOST 1 at orders/0 1 (bill in g)" in alarm["text"]
    assert (alarm["exit_code"], alarm["anomalies"], alarm["roots"]) == (1, 1, [str(root)])
    assert Path(alarm["report"]).is_file()
    assert (end["new"], [each["verdict"] for each in end["gone"]], end["exit_code"]) == ([], ["LOST"], 0)
    assert "undelivered_alarms{" in metrics.read_text()


def test_the_newest_page_and_summary_are_at_one_place_and_the_last_runs_are_kept_with_those_whose_plan_was_begun(tmp_path: Path) -> None:
    root, notes, out = tmp_path / "root", Notes(), tmp_path / "out"
    write(root, LOST)
    first: list[Path] = []

    def begin() -> None:
        first.extend(path for path in out.iterdir() if path.is_dir())
        (first[0] / "plan.progress.jsonl").write_text("")

    with following(out, judging(requested(root)), notes) as follower:
        follower.new_run_id = iter([f"20260101T0000{number:02d}Z-0000" for number in range(13)]).__next__
        follower.follow(updates(begin, *[nothing] * 11))
    runs = sorted(path for path in out.iterdir() if path.is_dir())
    assert [run.name[13:15] for run in runs] == ["00", *(f"{number:02d}" for number in range(3, 13))]
    assert (out / "summary.json").read_text() == (runs[-1] / "summary.json").read_text()
    assert (out / "report.html").read_text() == (runs[-1] / "report.html").read_text()
    assert json.loads((out / "summary.json").read_text())["output"] == str(runs[-1])


def test_one_command_follows_into_a_folder_and_takes_no_folder_of_others(tmp_path: Path) -> None:
    with opened(tmp_path / "out"), pytest.raises(ConfigurationError, match="another command follows into"), opened(tmp_path / "out"):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").touch()
    with pytest.raises(ConfigurationError, match=r"holds 'letters\.txt', which --follow has not written"), opened(tmp_path / "mine"):
        pass


def test_a_note_of_what_was_told_that_is_damaged_tells_it_again(tmp_path: Path) -> None:
    with opened(tmp_path / "out") as folder:
        for text in ("", "[", "[1]", '[["LOST"]]', '{"a": 1}', "[[[1], 5]]"):
            (folder.path / "told.json").write_text(text)
            assert folder.told() == {}
