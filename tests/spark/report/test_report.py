"""The report as a value, as JSON and as tables. Needs no Spark."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from tests.spark.report.reports import CLEAN, EMPTY, ORPHANED, PRODUCED

from ackwise.spark.advice import ADVICE
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import Partition, Writer, WriterFate
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Production, Unsent
from ackwise.spark.report.page.sentences import produced_sentences
from ackwise.spark.report.report import Finding, LogicalFinding, Missing, RunReport, Tally
from ackwise.spark.report.summary import to_json
from ackwise.spark.report.terminal import show
from ackwise.spark.storeclaims.findings import ClaimReport
from ackwise.spark.vocabulary import (
    ANOMALIES,
    FLAG_MEANINGS,
    INCONCLUSIVE,
    MEANINGS,
    PRODUCED_MEANINGS,
    RED,
    ExitCode,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
    Verdict,
)

PARTITION = Partition(7, ("c", "g"), "orders", "", 0, 1, 0)


def with_messages(verdict: Verdict, *flags: Flag) -> RunReport:
    return replace(EMPTY, tallies=[Tally("g", "bill", "orders", verdict, Flag(sum(flags)), 3)])


def printed(report: RunReport, width: int = 160) -> str:
    text = io.StringIO()
    show(report, Console(file=text, width=width))
    return text.getvalue()


def test_the_exit_code_is_that_of_the_worst_that_is_known() -> None:
    clean, red, unknown = ExitCode.CLEAN, ExitCode.ANOMALIES, ExitCode.INCONCLUSIVE
    for verdict in Verdict:
        expected = red if verdict in ANOMALIES else unknown if verdict in INCONCLUSIVE else clean
        assert with_messages(verdict).exit_code is expected, verdict
    for flag in Flag:
        assert with_messages(Verdict.IN_FLIGHT, flag).exit_code is (red if flag in RED else clean), flag
    keys = replace(EMPTY, logical=[LogicalFinding("g", "bill", LogicalVerdict.LOGICAL_DUPLICATE, Flag(0), 2)])
    assert (EMPTY.exit_code, keys.exit_code, keys.anomalies) == (clean, red, 2)
    torn = ["x is torn"]
    assert replace(EMPTY, unreadable=torn).exit_code is unknown
    assert replace(with_messages(Verdict.LOST), unreadable=torn).exit_code is red
    assert replace(with_messages(Verdict.EXACTLY_ONCE), unbounded=["billing"]).exit_code is unknown
    ended = replace(EMPTY, as_of=100_000_000)
    assert [replace(ended, config=ReconcileConfig(since=since)).exit_code for since in (99.0, 101.0)] == [clean, unknown]


def test_a_store_with_none_of_the_keys_is_never_called_clean() -> None:
    emptied = ClaimReport("postgresql://db/shop", 0, 0, {}, [], ["bill of billing"], [])
    assert (CLEAN.exit_code, replace(CLEAN, claims=emptied).exit_code) == (ExitCode.CLEAN, ExitCode.INCONCLUSIVE)


def test_strict_makes_doubts_and_what_was_given_up_without_a_dead_letter_an_exit_code_of_1() -> None:
    strict = ReconcileConfig(strict=True)
    for verdict, flag in (
        (Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC), (Verdict.MAYBE_TWICE, Flag.REPEATED), (Verdict.DROPPED, Flag(0)),
        (Verdict.SUPPRESSED_BY_DEAD, Flag(0)), (Verdict.EXACTLY_ONCE, Flag.MAYBE_OVERTAKEN),
    ):  # fmt: skip
        lenient = with_messages(verdict, flag)
        assert (lenient.exit_code, replace(lenient, config=strict).exit_code) == (ExitCode.CLEAN, ExitCode.ANOMALIES), verdict
        assert replace(lenient, config=strict).anomalies == 0
    assert replace(EMPTY, config=strict).exit_code is ExitCode.CLEAN


def test_every_verdict_and_flag_has_a_meaning_and_whatever_makes_the_exit_code_other_than_0_an_action() -> None:
    assert (set(MEANINGS), set(FLAG_MEANINGS)) == ({*Verdict}, {*Flag})
    assert set(ADVICE) >= {kind.name for kind in (*ANOMALIES, *INCONCLUSIVE, *RED, LogicalVerdict.LOGICAL_DUPLICATE)}


def test_offsets_without_events_count_as_much_as_messages() -> None:
    account = PartitionAccount(PARTITION, 0, 5, False, {Verdict.EXACTLY_ONCE: 3}, {Verdict.NEVER_SEEN: 2}, 0)
    report = replace(with_messages(Verdict.EXACTLY_ONCE), accounts=[account])
    assert (report.anomalies, report.exit_code) == (2, ExitCode.ANOMALIES)
    assert dict(report.verdicts) == {Verdict.NEVER_SEEN: 2, Verdict.EXACTLY_ONCE: 3}


FULL = replace(
    with_messages(Verdict.LOST, Flag.HAD_FAILURES),
    as_of=1_767_225_600_000_000,
    writers=[Writer(0xAB, "w1", ("c", "g"), 0, 1_767_225_600_000_000, 9, "before_settle", WriterFate.DEAD, False)],
    accounts=[PartitionAccount(PARTITION, 0, 6, True, {Verdict.LOST: 3}, {Verdict.NEVER_SEEN: 2}, 1)],
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
    assert found["accounts"][0] | {"cluster": "c", "topic_id": ""} == {
        "cluster": "c", "group": "g", "topic": "orders", "topic_id": "", "partition": 0, "start": 0, "committed": 6, "offsets": 6,
        "verdicts": {"LOST": 3, "NEVER_SEEN": 2}, "gaps": 1, "balance": 0, "rewound": True,
    }  # fmt: skip
    assert found["findings"][0]["flags"] == ["HAD_FAILURES"]
    assert found["missing"] == [{"group": "g", "topic": "orders", "partition": 0, "start": 6, "end": 8, "verdict": "NEVER_SEEN"}]
    assert found["writers"][0]["fate"] == "dead"


def test_the_tables_show_accounts_first_and_neighbours_as_a_range() -> None:
    text = printed(FULL)
    assert text.index("Accounts") < text.index("Verdicts") < text.index("To look at")
    assert "3–4, 9" in text
    assert "6–7" in text
    assert "anomalies: 5 things to look at" in text
    assert "2 dedup hashes of [bold] in g" in text, "names are no markup"
    assert "[red]odd" in text


DOUBT = replace(
    with_messages(Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC),
    writers=[Writer(0xAB, "w1", ("c", "g"), 0, 9, 9, "before_settle", WriterFate.DEAD, False)],
    doubtful=[Finding("g", "bill", "orders", 0, 7, Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC, 1, "SUCCEEDED", 9)],
)


def test_messages_that_may_have_run_twice_are_never_called_clean_or_run_once() -> None:
    text = printed(DOUBT, width=300)
    assert "of 3 messages it can't be told whether they ran once or twice: an earlier worker died, or lost its claim" in text
    assert "(dead workers: w1 00000000000000ab)" in text
    assert "ran successfully, and perhaps more than once: 3 in doubt" in text
    assert (
        "in doubt: every committed message is accounted for, but not each is known to have run once; exit code 0, or 1 with --strict"
        in text
    )
    assert "2 more in doubt, in Spark SQL: SELECT * FROM parquet.`/out/verdicts` WHERE array_contains(flags, 'AMBIGUOUS_EXEC')" in text
    local = printed(replace(DOUBT, engine="local"), width=300)
    assert "2 more in doubt, in DuckDB: SELECT * FROM '/out/verdicts/*.parquet' WHERE array_contains(flags, 'AMBIGUOUS_EXEC')" in local
    assert "clean" not in text


def test_a_doubt_about_all_that_a_worker_had_fetched_says_so_and_why() -> None:
    (writer,) = DOUBT.writers
    reason = "; all that w1 00000000000000ab had fetched counts, since no complete log shows what had started"
    marked, unmarked = replace(writer, is_mute=True, has_marks=True), replace(writer, is_mute=True)
    hole = Hole(writer.writer_id, 3, 4)
    for writers, holes, is_said in (
        ([unmarked], [], True),
        ([marked], [], False),
        ([replace(marked, tail_is_unknown=True)], [], True),
        ([marked], [hole], True),
    ):
        assert (reason in printed(replace(DOUBT, writers=writers, holes=holes), width=400)) == is_said


def test_a_doubt_is_said_beside_an_anomaly_and_beside_missing_events() -> None:
    for worse in (
        replace(DOUBT, tallies=[*DOUBT.tallies, Tally("g", "bill", "orders", Verdict.LOST, Flag(0), 1)]),
        replace(DOUBT, unreadable=["x is torn"]),
    ):
        assert "of 3 messages it can't be told whether they ran once or twice" in printed(worse)
        assert "in doubt:" not in printed(worse)


def test_what_was_produced_is_printed_and_counted() -> None:
    text = printed(PRODUCED)
    assert text.index("Accounts") < text.index("Produced, by what became of it") < text.index("Verdicts")
    assert "NOT_PUBLISHED: 2 records to be produced, and long without coordinates" in text
    assert "ORPHAN_CONSUMED: 10 records consumed, though no event says that they were produced" in text
    assert (PRODUCED.anomalies, PRODUCED.exit_code, PRODUCED.verdicts[Verdict.LOST_PRODUCED]) == (9, ExitCode.ANOMALIES, 4)
    found = json.loads(to_json(PRODUCED))["produced"]
    assert found["accounts"][0] | {"cluster": "c", "topic_id": ""} == {
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


def test_the_documentation_has_every_verdict_flag_and_exit_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reconcile.md").read_text("utf-8")
    for name in (*Verdict.__members__, *LogicalVerdict.__members__, *ProducedVerdict.__members__, *Flag.__members__):
        assert f"`{name}`" in text
    for code in ExitCode:
        assert f"\n| {int(code)} | " in text


def test_what_waits_for_people_is_an_anomaly_if_strict_and_what_can_not_be_known_is_inconclusive() -> None:
    for verdict, strict, code in (
        (ProducedVerdict.NOT_PUBLISHED, False, ExitCode.ANOMALIES),
        (ProducedVerdict.PARKED, False, ExitCode.CLEAN),
        (ProducedVerdict.PARKED, True, ExitCode.ANOMALIES),
        (ProducedVerdict.PRODUCE_FAILED, True, ExitCode.CLEAN),
        (ProducedVerdict.PUBLISH_UNKNOWN, False, ExitCode.INCONCLUSIVE),
        (None, True, ExitCode.CLEAN),
    ):
        production, name = Production("", [], [], 0, [], [Unsent("orders", verdict, 2)]), None if verdict is None else verdict.name
        report = replace(CLEAN, produced=production, config=replace(CLEAN.config, strict=strict))
        assert report.exit_code is code, verdict
        assert json.loads(to_json(report))["produced"]["unsent"] == [{"topic": "orders", "verdict": name, "messages": 2}]
        if verdict is not None:
            assert f"{name}: 2 records {PRODUCED_MEANINGS[verdict]}" in printed(report)
            assert any(str(name) in sentence for sentence in produced_sentences(production))
