"""The report as a value, as JSON and as tables. Needs no Spark."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.spark.report.reports import CLEAN, ORPHANED, PRODUCED

from ackwise.spark.advice import ADVICE
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import Partition, Writer, WriterFate
from ackwise.spark.judge.accounts import Production, Unsent
from ackwise.spark.judge.books import Book
from ackwise.spark.report.page.sentences import produced_sentences
from ackwise.spark.report.report import Finding, LogicalFinding, Missing, RunReport, Tally
from ackwise.spark.report.summary import to_json
from ackwise.spark.report.terminal import show
from ackwise.spark.vocabulary import (
    ANOMALIES,
    FLAG_MEANINGS,
    INCONCLUSIVE,
    MEANINGS,
    PRODUCED_MEANINGS,
    ExitCode,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
    Verdict,
)

PARTITION = Partition(7, ("c", "g"), "orders", "", 0, 1, 0)
EMPTY = RunReport(
    run_id="r", as_of=0, roots=["/events"], files=0, bytes=0, writers=[], missing_events=0, books=[], tallies=[], findings=[], doubtful=[],
    missing=[], listed=50, logical=[], dead_letters=[], delays=[], timeline=None, unreadable=[], warnings=[], output="/out",
    config=ReconcileConfig(),
)  # fmt: skip


def with_messages(verdict: Verdict, *flags: Flag) -> RunReport:
    return replace(EMPTY, tallies=[Tally("g", "bill", "orders", verdict, Flag(sum(flags)), 3)])


def printed(report: RunReport, width: int = 160) -> str:
    text = io.StringIO()
    show(report, Console(file=text, width=width))
    return text.getvalue()


def test_nothing_is_clean() -> None:
    assert EMPTY.exit_code is ExitCode.CLEAN


def test_without_offsets_and_without_what_was_produced_nothing_is_called_clean() -> None:
    assert replace(with_messages(Verdict.EXACTLY_ONCE), unbounded=["billing"]).exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("verdict", Verdict)
def test_the_exit_code_follows_the_verdict(verdict: Verdict) -> None:
    expected = ExitCode.ANOMALIES if verdict in ANOMALIES else ExitCode.INCONCLUSIVE if verdict in INCONCLUSIVE else ExitCode.CLEAN
    assert with_messages(verdict).exit_code is expected


@pytest.mark.parametrize("flag", Flag)
def test_of_the_flags_only_committed_past_is_an_anomaly(flag: Flag) -> None:
    expected = ExitCode.ANOMALIES if flag is Flag.COMMITTED_PAST else ExitCode.CLEAN
    assert with_messages(Verdict.IN_FLIGHT, flag).exit_code is expected


def test_offsets_without_events_count_as_much_as_messages() -> None:
    book = Book(PARTITION, 0, 5, False, {Verdict.EXACTLY_ONCE: 3}, {Verdict.NEVER_SEEN: 2}, 0)
    report = replace(with_messages(Verdict.EXACTLY_ONCE), books=[book])
    assert (report.anomalies, report.exit_code) == (2, ExitCode.ANOMALIES)
    assert dict(report.verdicts) == {Verdict.NEVER_SEEN: 2, Verdict.EXACTLY_ONCE: 3}


def test_a_logical_duplicate_is_an_anomaly_though_its_messages_are_none() -> None:
    report = replace(EMPTY, logical=[LogicalFinding("g", "bill", LogicalVerdict.LOGICAL_DUPLICATE, Flag(0), 2)])
    assert (report.anomalies, report.exit_code) == (2, ExitCode.ANOMALIES)


@pytest.mark.parametrize(("since", "code"), [(99.0, ExitCode.CLEAN), (101.0, ExitCode.INCONCLUSIVE)])
def test_a_time_after_the_last_event_is_inconclusive(since: float, code: ExitCode) -> None:
    assert replace(EMPTY, as_of=100_000_000, config=ReconcileConfig(since=since)).exit_code is code


def test_a_log_that_can_not_be_read_is_inconclusive() -> None:
    assert replace(EMPTY, unreadable=["x is torn"]).exit_code is ExitCode.INCONCLUSIVE


def test_an_anomaly_is_one_whatever_else_is_unknown() -> None:
    assert replace(with_messages(Verdict.LOST), unreadable=["x is torn"]).exit_code is ExitCode.ANOMALIES


def test_the_retry_book_says_what_became_of_what_was_sent_back() -> None:
    tallies = [
        Tally("g", "bill", "orders", Verdict.EXACTLY_ONCE, Flag.RETRIED | Flag.HAD_FAILURES, 3),
        Tally("g", "bill", "orders", Verdict.EXACTLY_ONCE, Flag(0), 5),
        Tally("g", "bill", "orders", Verdict.RETRYING, Flag.RETRIED, 1),
    ]
    assert dict(replace(EMPTY, tallies=tallies).retries) == {Verdict.RETRYING: 1, Verdict.EXACTLY_ONCE: 3}


def test_every_verdict_and_every_flag_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Verdict)
    assert set(FLAG_MEANINGS) == set(Flag)


def test_whatever_makes_the_exit_code_other_than_0_has_an_action() -> None:
    assert set(ADVICE) >= {kind.name for kind in (*ANOMALIES, *INCONCLUSIVE, Flag.COMMITTED_PAST, LogicalVerdict.LOGICAL_DUPLICATE)}


FULL = replace(
    with_messages(Verdict.LOST, Flag.HAD_FAILURES),
    as_of=1_767_225_600_000_000,
    writers=[Writer(0xAB, "w1", ("c", "g"), 0, 1_767_225_600_000_000, 9, "before_settle", WriterFate.DEAD, False)],
    books=[Book(PARTITION, 0, 6, True, {Verdict.LOST: 3}, {Verdict.NEVER_SEEN: 2}, 1)],
    findings=[
        Finding("g", "bill", "orders", 0, offset, Verdict.LOST, Flag.HAD_FAILURES, 1, "FAILED", 1_767_225_600_000_000)
        for offset in (3, 4, 9)
    ],
    missing=[Missing("g", "orders", 0, 6, 8, Verdict.NEVER_SEEN)],
    logical=[LogicalFinding("g", "[bold]", LogicalVerdict.PHANTOM, Flag(0), 2)],
    warnings=["[red]odd"],
)


def test_json_names_verdicts_flags_and_times() -> None:
    found = json.loads(to_json(FULL))
    assert (found["schema_version"], found["exit_code"], found["as_of"]) == (1, 1, "2026-01-01T00:00:00.000+00:00")
    assert found["verdicts"] == {"LOST": 3, "NEVER_SEEN": 2}
    assert found["books"][0] | {"cluster": "c", "topic_id": ""} == {
        "cluster": "c", "group": "g", "topic": "orders", "topic_id": "", "partition": 0, "start": 0, "committed": 6, "offsets": 6,
        "verdicts": {"LOST": 3, "NEVER_SEEN": 2}, "gaps": 1, "balance": 0, "rewound": True,
    }  # fmt: skip
    assert found["findings"][0]["flags"] == ["HAD_FAILURES"]
    assert found["missing"] == [{"group": "g", "topic": "orders", "partition": 0, "start": 6, "end": 8, "verdict": "NEVER_SEEN"}]
    assert found["writers"][0]["fate"] == "dead"


def test_the_same_report_is_the_same_text() -> None:
    assert to_json(FULL) == to_json(replace(FULL))
    assert printed(FULL) == printed(replace(FULL))


def test_the_tables_show_books_first_and_neighbours_as_a_range() -> None:
    text = printed(FULL)
    assert text.index("Books") < text.index("Verdicts") < text.index("To look at")
    assert "3–4, 9" in text
    assert "6–7" in text
    assert "anomalies: 5 things to look at" in text


DOUBT = replace(
    with_messages(Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC),
    writers=[Writer(0xAB, "w1", ("c", "g"), 0, 9, 9, "before_settle", WriterFate.DEAD, False)],
    doubtful=[Finding("g", "bill", "orders", 0, 7, Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC, 1, "SUCCEEDED", 9)],
)


def test_messages_that_may_have_run_twice_are_never_called_clean_or_run_once() -> None:
    text = printed(DOUBT, width=300)
    assert "of 3 messages it can't be told whether they ran once or twice: an earlier worker died, or lost its claim" in text
    assert "(dead workers: w1 00000000000000ab)" in text
    assert "run with success, and perhaps more than once: 3 in doubt" in text
    assert (
        "in doubt: every committed message is accounted for, but not each is known to have run once; exit code 0, or 1 with --strict"
        in text
    )
    assert "2 more in doubt, in Spark SQL: SELECT * FROM parquet.`/out/verdicts` WHERE array_contains(flags, 'AMBIGUOUS_EXEC')" in text
    assert "clean" not in text


def test_a_doubt_is_said_beside_an_anomaly_and_beside_missing_events() -> None:
    for worse in (
        replace(DOUBT, tallies=[*DOUBT.tallies, Tally("g", "bill", "orders", Verdict.LOST, Flag(0), 1)]),
        replace(DOUBT, unreadable=["x is torn"]),
    ):
        assert "of 3 messages it can't be told whether they ran once or twice" in printed(worse)
        assert "in doubt:" not in printed(worse)


@pytest.mark.parametrize("flag", [Flag.AMBIGUOUS_EXEC, Flag.REPEATED])
def test_strict_makes_a_doubt_an_exit_code_of_1(flag: Flag) -> None:
    lenient = with_messages(Verdict.MAYBE_TWICE, flag)
    strict = replace(lenient, config=ReconcileConfig(strict=True))
    assert (lenient.exit_code, strict.exit_code, strict.anomalies) == (ExitCode.CLEAN, ExitCode.ANOMALIES, 0)
    assert replace(EMPTY, config=ReconcileConfig(strict=True)).exit_code is ExitCode.CLEAN


@pytest.mark.parametrize("verdict", [Verdict.DROPPED, Verdict.SUPPRESSED_BY_DEAD])
def test_strict_makes_what_was_given_up_without_a_dead_letter_an_exit_code_of_1(verdict: Verdict) -> None:
    lenient = with_messages(verdict, Flag(0))
    strict = replace(lenient, config=ReconcileConfig(strict=True))
    assert (lenient.exit_code, strict.exit_code, strict.anomalies) == (ExitCode.CLEAN, ExitCode.ANOMALIES, 0)


def test_what_was_produced_is_printed_and_counted() -> None:
    text = printed(PRODUCED)
    assert text.index("Books") < text.index("Produced, by what became of it") < text.index("Verdicts")
    assert "NOT_PUBLISHED: 2 records to be produced, and long without coordinates" in text
    assert "ORPHAN_CONSUMED: 10 records consumed, though nobody says that they were produced" in text
    assert (PRODUCED.anomalies, PRODUCED.exit_code, PRODUCED.verdicts[Verdict.LOST_PRODUCED]) == (9, ExitCode.ANOMALIES, 4)
    found = json.loads(to_json(PRODUCED))["produced"]
    assert found["books"][0] | {"cluster": "c", "topic_id": ""} == {
        "cluster": "c", "group": "billing", "topic": "orders", "topic_id": "", "partition": 0, "produced": 495, "handled": 480, "lost": 2,
        "lost_before_start": 2, "explained": 3, "waiting": 7, "earlier": 1, "orphans": 10,
    }  # fmt: skip
    assert found["orphans"] == [{"group": "billing", "topic": "orders", "partition": 0, "start": 100, "end": 110}]
    assert (found["unpublished"][0]["late"], found["unread"]) == (2, 4)


def test_what_nobody_produced_is_in_doubt() -> None:
    assert "in doubt: every committed message is accounted for, but not each is known to have been produced; exit code 0" in printed(
        ORPHANED
    )


def test_what_is_known_to_have_run_twice_is_no_doubt() -> None:
    report = with_messages(Verdict.MULTI_EXECUTED, Flag.AMBIGUOUS_EXEC)
    assert (report.ambiguous, report.unlisted) == (0, 0)
    assert json.loads(to_json(DOUBT))["ambiguous"] == 3
    assert [row["offset"] for row in json.loads(to_json(DOUBT))["doubtful"]] == [7]


@pytest.mark.parametrize(("asked", "judged"), [(2, "2"), (9, "3"), (0, None)])
def test_it_is_said_that_messages_were_judged_once_more(asked: int, judged: str | None) -> None:
    text = printed(replace(with_messages(Verdict.EXACTLY_ONCE), config=ReconcileConfig(verify_sample=asked)))
    assert ("judged once more" in text) is (judged is not None)
    assert judged is None or f"up to {judged} messages judged once more by other means, with no difference" in text


def test_names_are_printed_as_they_are() -> None:
    text = printed(FULL)
    assert "2 dedup hashes of [bold] in g" in text
    assert "[red]odd" in text


def test_where_the_terminal_is_narrow_cells_are_folded_and_never_cut() -> None:
    long = Partition(7, ("c", "g"), "a-topic-with-a-name-that-is-longer-than-a-narrow-terminal", "", 0, 1, 0)
    assert "…" not in printed(replace(FULL, books=[replace(FULL.books[0], partition=long)]), width=60)


def test_many_partitions_are_cut_short_with_a_word() -> None:
    assert "and 60 more partitions in summary.json" in printed(replace(FULL, books=[*FULL.books] * 100))


def test_the_documentation_has_every_verdict_flag_and_exit_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reconcile.md").read_text("utf-8")
    for name in (*Verdict.__members__, *LogicalVerdict.__members__, *ProducedVerdict.__members__, *Flag.__members__):
        assert f"`{name}`" in text
    for code in ExitCode:
        assert f"\n| {int(code)} | " in text


@pytest.mark.parametrize(("verdict", "strict", "code"), [
    (ProducedVerdict.NOT_PUBLISHED, False, ExitCode.ANOMALIES),
    (ProducedVerdict.PARKED, False, ExitCode.CLEAN),
    (ProducedVerdict.PARKED, True, ExitCode.ANOMALIES),
    (ProducedVerdict.PRODUCE_FAILED, True, ExitCode.CLEAN),
    (ProducedVerdict.PUBLISH_UNKNOWN, False, ExitCode.INCONCLUSIVE),
    (None, True, ExitCode.CLEAN),
])  # fmt: skip
def test_what_waits_for_people_is_an_anomaly_if_strict_and_what_can_not_be_known_is_inconclusive(
    verdict: ProducedVerdict | None, strict: bool, code: ExitCode
) -> None:
    production = Production("", [], [], 0, [], [Unsent("orders", verdict, 2)])
    report = replace(CLEAN, produced=production, config=replace(CLEAN.config, strict=strict))
    assert report.exit_code is code
    assert json.loads(to_json(report))["produced"]["unsent"] == [
        {"topic": "orders", "verdict": None if verdict is None else verdict.name, "messages": 2}
    ]
    named = "" if verdict is None else f"{verdict.name}: 2 records {PRODUCED_MEANINGS[verdict]}"
    assert named in printed(report)
    assert any(verdict is None or verdict.name in sentence for sentence in produced_sentences(production))
