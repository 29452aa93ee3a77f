"""The report as a page: what it says, and that its markup is sound. Needs no Spark.

After a wanted change, `python -m tests.spark.report.page.test_page` writes the golden texts anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from tests.spark.report.reports import (
    ANOMALIES,
    CLAIMED,
    CLEAN,
    DOUBT,
    EMPTY,
    HOSTILE,
    INCONCLUSIVE,
    NOW,
    ORPHANED,
    PRODUCED,
    REPEATED,
    REPORTS,
    SECOND,
)

from ackwise.spark.advice import ADVICE, said
from ackwise.spark.claims.findings import ClaimVerdict
from ackwise.spark.judge.books import Book
from ackwise.spark.report.missingranges import missing_ranges
from ackwise.spark.report.page.answers import headline, loss, repeat, waiting
from ackwise.spark.report.page.history import runs, runs_lanes
from ackwise.spark.report.page.render import render
from ackwise.spark.report.page.sentences import (
    books_sentence,
    findings_sentence,
    outcome,
    produced_sentences,
    produced_tone,
    redriven_sentences,
    subject,
)
from ackwise.spark.report.page.tables import findings_table, flags_table, retries_table, verdicts_table
from ackwise.spark.report.report import Finding, RunReport, Tally
from ackwise.spark.report.summary import to_json
from ackwise.spark.report.todo import todo
from ackwise.spark.report.words import duration
from ackwise.spark.vocabulary import ANOMALIES as RED
from ackwise.spark.vocabulary import INCONCLUSIVE as UNKNOWN
from ackwise.spark.vocabulary import Flag, LogicalVerdict, ProducedVerdict, Verdict

GOLDEN = Path(__file__).with_name("golden")
VOID: Final = {"meta", "br"}
#: The elements that are a line of the golden text.
LINES: Final = {"h1", "h2", "h3", "p", "summary", "caption", "dt", "dd", "figcaption", "desc"}


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_says_what_it_said(name: str) -> None:
    assert lines(render(REPORTS[name])) == (GOLDEN / f"page-{name}.txt").read_text("utf-8")


def test_a_clean_run_needs_nothing_to_be_done() -> None:
    assert (headline(CLEAN), todo(CLEAN), waiting(CLEAN)) == ("Nothing was lost, nothing was done twice", [], "")
    assert (loss(CLEAN).answer, repeat(CLEAN).answer) == ("No", "No")


def test_a_run_over_a_part_of_the_time_says_so_before_it_says_that_nothing_was_lost() -> None:
    part = replace(CLEAN, config=replace(CLEAN.config, since=1_767_225_600.0))
    assert subject(part) == f"{subject(CLEAN)}; only what has happened since 2026-01-01 00:00:00 UTC, or was open then"


def test_a_loss_and_a_repetition_are_the_headline() -> None:
    assert headline(ANOMALIES) == "9 messages were lost, 6 messages were done twice and 3 may have been, 1 is stuck"
    assert [(answer.answer, answer.tone) for answer in (loss(ANOMALIES), repeat(ANOMALIES))] == [("Yes", "bad"), ("Yes", "bad")]


def test_what_is_unknown_is_counted_beside_what_is_lost() -> None:
    both = replace(INCONCLUSIVE, tallies=[*INCONCLUSIVE.tallies, Tally("billing", "bill", "orders", Verdict.LOST, Flag(0), 2)])
    assert headline(both).startswith("2 messages were lost, of 20 more it is not known")
    assert loss(both).because == [
        "2 messages: LOST 2.", "Of 20 messages it is not known whether they were lost: events are missing.",
    ]  # fmt: skip


def test_letters_that_were_sent_again_are_counted_by_what_became_of_them() -> None:
    fates = (
        (Verdict.EXACTLY_ONCE, Flag.REDRIVEN, 7),
        (Verdict.DEAD_LETTERED, Flag.REDRIVEN | Flag.DIED_AGAIN, 2),
        (Verdict.DEAD_LETTERED, Flag.REDRIVEN, 1),
    )
    report = replace(CLEAN, tallies=[Tally("billing", "<bill>", "orders", *fate) for fate in fates])
    sentence = "10 letters of <bill> in billing sent again: 7 succeeded, 2 died again, 1 not ended yet."
    assert redriven_sentences(report) == [sentence]
    assert sentence.replace("<bill>", "&lt;bill&gt;") in render(report)


def test_every_verdict_that_calls_for_somebody_has_its_action_and_the_red_ones_come_first() -> None:
    found = todo(ANOMALIES)
    assert [(each.name, each.number, each.of) for each in found] == [
        ("LOST", 4, "messages"), ("NEVER_SEEN", 5, "offsets"), ("STUCK", 1, "message"), ("MULTI_EXECUTED", 6, "messages"),
        ("COMMITTED_PAST", 1, "message"), ("LOGICAL_DUPLICATE", 2, "keys"), ("AMBIGUOUS_EXEC", 3, "messages"),
        ("DEAD_LETTERED", 12, "messages"),
    ]  # fmt: skip
    assert found[0].action == said("LOST", 4) == "Send the origin records again."


def test_every_kind_of_finding_has_advice_for_one_and_for_many() -> None:
    kinds = {*Verdict.__members__, *Flag.__members__, *LogicalVerdict.__members__, *ProducedVerdict.__members__, *ClaimVerdict.__members__}
    assert set(ADVICE) - {"UNREADABLE"} <= kinds
    assert set(ADVICE) >= {verdict.name for verdict in RED | UNKNOWN} | set(ProducedVerdict.__members__) | set(ClaimVerdict.__members__)
    for name in ADVICE:
        assert not set("{}") & set(said(name, 1) + said(name, 2))


def test_each_finding_has_the_command_that_tells_more_and_the_one_that_mends_it() -> None:
    found = {each.name: (each.tells, each.mends) for each in todo(ANOMALIES)}
    assert found["LOST"] == ("ackwise why orders/0/3 /events", "ackwise plan apply /out/plan.jsonl MODULE:APP")
    assert found["NEVER_SEEN"] == ("ackwise why orders/0/60 /events", "")  # no step of the plan is a PROBE
    assert found["LOGICAL_DUPLICATE"] == ("ackwise plan show /out/plan.jsonl", "")
    assert found["DEAD_LETTERED"] == ("ackwise dlq list billing", "ackwise dlq redrive MODULE:APP")
    assert todo(INCONCLUSIVE)[0].mends == "ackwise reconcile /events FOLDER-OF-THE-FOUND-FILES"


def test_a_command_names_the_app_that_was_given_and_no_name_in_it_does_harm_in_a_shell() -> None:
    finding = Finding("g", "bill", "-x; rm -rf $HOME '", 0, 7, Verdict.LOST, Flag(0), 1, "FAILED", NOW)
    report = replace(ANOMALIES, findings=[finding], app="billing.worker:app", roots=["/a b", "/c"])
    first = todo(report)[0]
    assert first.tells == """ackwise why -- '-x; rm -rf $HOME '"'"'/0/7' '/a b' /c"""
    assert first.mends == "ackwise plan apply /out/plan.jsonl billing.worker:app"


def test_what_is_in_doubt_names_a_message_of_which_it_is_not_known_that_it_ran_twice() -> None:
    known = Finding("billing", "bill", "orders", 0, 5, Verdict.MULTI_EXECUTED, Flag.AMBIGUOUS_EXEC, 1, "SUCCEEDED", NOW)
    tells = {each.name: each.tells for each in todo(replace(ANOMALIES, findings=[known, *ANOMALIES.findings]))}
    assert (tells["MULTI_EXECUTED"], tells["AMBIGUOUS_EXEC"]) == ("ackwise why orders/0/5 /events", "ackwise why orders/0/30 /events")


def test_what_is_harmless_comes_last() -> None:
    flags = Flag.NEG_LATENCY | Flag.AMBIGUOUS_EXEC | Flag.COMMITTED_PAST
    report = replace(
        EMPTY,
        tallies=[
            Tally("g", "bill", "orders", verdict, flags if verdict is Verdict.STUCK else Flag.HAD_FAILURES, 1)
            for verdict in (Verdict.DEAD_LETTERED, Verdict.UNKNOWN_EXPORT_GAP, Verdict.STUCK)
        ],
    )
    assert [each.name for each in todo(report)] == [
        "STUCK", "COMMITTED_PAST", "UNKNOWN_EXPORT_GAP", "AMBIGUOUS_EXEC", "DEAD_LETTERED",
    ]  # fmt: skip
    assert [cells[0].text for cells in flags_table(report).rows] == ["COMMITTED_PAST", "AMBIGUOUS_EXEC", "HAD_FAILURES", "NEG_LATENCY"]


def test_missing_events_are_named_with_writer_host_and_time() -> None:
    between, end, whole = missing_ranges(INCONCLUSIVE)
    assert (between.host, between.first, between.last, between.group) == ("shop-2:8", 200, 203, "billing")
    assert (between.since, between.until) == (NOW - 60 * SECOND, NOW - 30 * SECOND)
    assert (end.first, end.last, end.since, end.until) == (1000, 1299, NOW - SECOND, None)
    assert (whole.writer_id, whole.host, whole.group, whole.since, whole.until) == (9, "", HOSTILE, None, None)
    assert json.loads(to_json(INCONCLUSIVE))["holes"][0] == {
        "writer": "0000000000000001", "client": "w1", "host": "shop-2:8", "group": "billing", "first": 200, "last": 203,
        "since": "2025-12-31T23:59:00.000+00:00", "until": "2025-12-31T23:59:30.000+00:00",
    }  # fmt: skip
    page = lines(render(INCONCLUSIVE))
    assert "shop-2:8 | 200 – 203 | 4 | 2025-12-31 23:59:00 UTC | 2025-12-31 23:59:30 UTC" in page
    assert page.index("## Which events are missing") < page.index("## Books")


def test_where_a_second_run_may_hide_nothing_on_the_first_screen_says_that_all_is_well() -> None:
    assert (outcome(DOUBT), DOUBT.exit_code) == (("in doubt", "doubt"), 0)
    assert headline(DOUBT) == "Nothing was lost, 190 messages may have been done twice"
    (ambiguous,) = todo(DOUBT)
    assert (ambiguous.name, ambiguous.number, ambiguous.tone) == ("AMBIGUOUS_EXEC", 190, "doubt")
    assert "look up the effects in your own system, by their keys" in ambiguous.action
    assert "dead workers: w1 0000000000000001, w2 0000000000000002, w3 0000000000000003 and 1 more" in repeat(DOUBT).because[0]
    maybe_row, once_row = verdicts_table(DOUBT).rows
    assert [cell.text for cell in maybe_row] == [
        "MAYBE_TWICE", "190", "19.2 %", "run with success, and perhaps more than once: 190 in doubt",
    ]  # fmt: skip
    assert (maybe_row[0].tone, once_row[0].text, once_row[0].tone) == ("doubt", "EXACTLY_ONCE", "good")


def test_messages_in_doubt_are_listed_up_to_the_limit_and_the_rest_has_its_query() -> None:
    (row,) = findings_table(DOUBT).rows
    assert [cell.text for cell in row[:3]] == ["MAYBE_TWICE", "orders/0", "100–149"]
    assert row[0].tone == "doubt"
    assert "140 more messages in doubt, in Spark SQL: SELECT * FROM parquet.`/out/verdicts` WHERE " in findings_sentence(DOUBT)


def test_a_doubt_is_an_anomaly_only_if_it_is_strict_and_the_page_still_calls_it_a_doubt() -> None:
    strict = replace(DOUBT, config=replace(DOUBT.config, strict=True))
    assert (outcome(strict)[0], strict.exit_code) == ("in doubt", 1)


def test_of_what_is_known_to_have_run_twice_the_rest_may_have_is_said_beside_it() -> None:
    assert headline(REPEATED) == "Nothing was lost, 10 messages were done twice and 190 may have been"
    assert verdicts_table(REPEATED).rows[0][3].text == "run with success, and perhaps more than once: 190 in doubt and 10 run again"


def test_missing_events_do_not_hide_a_doubt() -> None:
    both = replace(INCONCLUSIVE, tallies=DOUBT.tallies)
    assert headline(both) == "No loss was found, but of 20 messages it is not known, 190 messages may have been done twice"


def test_what_is_missing_is_never_called_fine() -> None:
    assert (loss(INCONCLUSIVE).answer, repeat(INCONCLUSIVE).answer) == ("Not known", "None seen")
    assert [each.name for each in todo(INCONCLUSIVE)] == ["UNKNOWN_EXPORT_GAP", "UNREADABLE"]


@pytest.mark.parametrize(
    ("verdict", "flag", "lost", "twice"),
    [
        (Verdict.IN_FLIGHT, Flag.COMMITTED_PAST, "Maybe", "No"),
        (Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC, "No", "Maybe"),
        (Verdict.MAYBE_TWICE, Flag.REPEATED, "No", "Yes"),
        (Verdict.PHANTOM_SUPPRESSED, Flag(0), "Yes", "No"),
        (Verdict.RETRY_LOST, Flag(0), "Yes", "No"),
        (Verdict.DEAD_LETTERED, Flag(0), "No", "No"),
        (Verdict.UNKNOWN_EXPORT_GAP, Flag(0), "Not known", "No"),
    ],
)
def test_the_answers_follow_the_verdict_and_the_flag(verdict: Verdict, flag: Flag, lost: str, twice: str) -> None:
    report = replace(EMPTY, tallies=[Tally("g", "bill", "orders", verdict, flag, 3)])
    assert (loss(report).answer, repeat(report).answer) == (lost, twice)


@pytest.mark.parametrize("report", [replace(CLEAN, unbounded=["g"]), replace(CLEAN, config=replace(CLEAN.config, since=NOW / SECOND + 1))])
def test_an_inconclusive_run_never_says_that_nothing_was_lost(report: RunReport) -> None:
    assert (report.exit_code, loss(report).answer) == (3, "Not known")


def test_what_was_produced_and_lost_on_the_way_is_lost() -> None:
    assert headline(PRODUCED) == "9 messages were lost, nothing was done twice"
    assert [(each.name, each.number, each.of, each.tone) for each in todo(PRODUCED)] == [
        ("LOST_PRODUCED", 4, "offsets", "bad"), ("RETENTION_LOSS", 3, "offsets", "bad"), ("NOT_PUBLISHED", 2, "records", "bad"),
        ("ORPHAN_CONSUMED", 10, "records", "doubt"),
    ]  # fmt: skip
    assert PRODUCED.produced is not None
    assert produced_sentences(PRODUCED.produced) == [
        "Of 495 records that were produced, 4 were passed by without having been received.",
        "3 records were not published yet, 2 of them for longer than the grace (NOT_PUBLISHED).",
        "10 records were consumed and not produced: orders/0 100–109.",
    ]
    assert produced_tone(PRODUCED.produced) == "bad"


def test_every_copy_that_was_sent_back_is_in_the_retry_book() -> None:
    row, _ = retries_table(ANOMALIES).rows
    assert [cell.text for cell in row] == ["bill", "orders", "1", "100", "90", "2", "1", "3", "4", "billing"]
    assert json.loads(to_json(ANOMALIES))["retry_books"][0] == {
        "group": "billing", "handler": "bill", "topic": "orders", "attempt": 1, "sent": 100, "came": 90, "waiting": 2, "lost": 1,
        "unknown": 3, "overtaken": 4,
    }  # fmt: skip


def test_what_was_consumed_and_not_produced_is_a_doubt() -> None:
    assert (outcome(ORPHANED)[0], ORPHANED.exit_code, [each.name for each in todo(ORPHANED)]) == ("in doubt", 0, ["ORPHAN_CONSUMED"])
    assert replace(ORPHANED, config=replace(ORPHANED.config, strict=True)).exit_code == 1


def test_claims_have_a_section_of_their_own() -> None:
    page = lines(render(CLAIMED))
    assert "1,000 of 1,200 keys in postgresql://db/shop are of these events; store and events disagree about 3 keys." in page
    assert "DONE_UNSEEN | orders/0/7 | bill | LOST | 6f1e | done by the store" in page
    assert "## Claims" not in lines(render(CLEAN))


def test_runs_are_compared_with_those_before() -> None:
    lanes = runs_lanes(runs(ANOMALIES))
    assert lanes.sentence.startswith("Beside the run before: anomalies 18, 18 more; unknown 0, 3 fewer; in doubt 3, 1 more; messages ")
    assert [list(lane.numbers) for lane in lanes.lanes[:3]] == [[0, 0, 18], [0, 3, 0], [0, 2, 3]]
    assert runs(CLEAN) == []


def test_what_is_wrong_is_shown_by_the_hour_of_its_record() -> None:
    page = lines(render(ANOMALIES))
    assert "What is anomalous or unknown, by the time of its record." in page
    assert "4 messages; most of them, 3, were in the 1 h from" in page
    assert "by the time of its record" not in lines(render(CLEAN))


def test_books_that_do_not_balance_say_so_first() -> None:
    book = CLEAN.books[0]
    report = replace(CLEAN, books=[Book(book.partition, 0, 600, False, book.messages, {}, 1)])
    assert books_sentence(report.books) == ("1 of 1 partition does not balance. Nothing on this page can be relied on.", "bad")
    assert "orders/0 | 0 | 600 | 600 | 100 |" in lines(render(report))


def test_many_partitions_are_cut_short_with_a_word() -> None:
    many = replace(CLEAN, books=[CLEAN.books[0]] * 250)
    assert "And 50 more partitions in summary.json." in render(many)


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0 ms"), (999_499, "999 ms"), (2_500_000, "2.5 s"), (3_000_000, "3 s"), (59_940_000, "59.9 s"), (185_000_000, "3 min 5 s"),
     (3_600_000_000, "1 h"), (86_399_000_000, "23 h 59 min"), (194_400_000_000, "2 d 6 h")],
)  # fmt: skip
def test_durations_are_said_in_two_units_at_most(micros: int, text: str) -> None:
    assert duration(micros) == text


class Element:
    """One element of a page."""

    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag, self.attributes, self.text = tag, attributes, ""
        self.children: list[Element] = []

    def all(self, *tags: str) -> Iterator[Element]:
        """Those inside of it, in the order of the page."""
        for child in self.children:
            if not tags or child.tag in tags:
                yield child
            yield from child.all(*tags)


class Tree(HTMLParser):
    """A page as elements. Refuses one whose tags do not pair."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(page)
        self.close()
        assert self._open == [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def lines(page: str) -> str:
    """The text of a page: a line for each paragraph and each row of a table, with its tone and the level of a heading."""
    return "\n".join(_lines(Tree(page).root)) + "\n"


def _lines(element: Element) -> Iterator[str]:
    for child in element.children:
        tones = [tone for tone in (child.attributes.get("class") or "").split() if tone in ("good", "bad", "doubt")]
        tone = f"[{tones[0]}] " if tones else ""
        if child.tag == "tr":
            yield f"  {' | '.join(words(cell.text) for cell in child.children)}"
        elif child.tag in LINES:
            yield f"{'#' * int(child.tag[1]) + ' ' if child.tag[0] == 'h' else ''}{tone}{words(child.text)}"
        else:
            yield from _lines(child)


def words(text: str) -> str:
    """The text without the space that a browser does not show."""
    return " ".join(text.split())


@pytest.fixture(params=REPORTS)
def page(request: pytest.FixtureRequest) -> str:
    return render(REPORTS[request.param])


@pytest.fixture
def tree(page: str) -> Element:
    return Tree(page).root


def test_the_same_data_gives_the_same_page(page: str) -> None:
    assert page in {render(report) for report in REPORTS.values()}


def test_there_is_one_title_and_headings_leave_out_no_level(tree: Element) -> None:
    levels = [int(heading.tag[1]) for heading in tree.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [child.text.strip() != "" for child in next(tree.all("head")).children if child.tag == "title"] == [True]
    assert next(tree.all("html")).attributes["lang"] == "en"


def test_the_first_screen_asks_in_this_order(tree: Element) -> None:
    headings = [heading.text for heading in tree.all("h2")]
    assert headings[:4] == ["Was anything lost?", "Was anything done twice?", "What do I do now?", "Books"]


def test_every_table_has_a_caption_and_headers_that_say_what_they_head(tree: Element) -> None:
    for table in tree.all("table"):
        assert table.children[0].tag == "caption"
        assert table.children[0].text.strip()
        for header in table.all("th"):
            assert header.attributes.get("scope") in {"col", "row"}
            assert header.text.strip()
        columns = len(list(next(table.all("thead")).all("th")))
        assert {len(row.children) for row in table.all("tr")} == {columns}


def test_every_picture_says_what_it_shows_or_is_passed_by(tree: Element) -> None:
    for picture in tree.all("svg"):
        if picture.attributes.get("aria-hidden") == "true":
            continue
        assert picture.attributes["role"] == "img"
        names = {child.attributes.get("id") for child in picture.all("title", "desc") if child.text.strip()}
        assert names == set((picture.attributes["aria-labelledby"] or "").split())
        assert len(names) == 2


def test_identifiers_are_unique(tree: Element) -> None:
    found = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
    assert len(found) == len(set(found))


def test_what_scrolls_can_be_reached_by_keyboard(tree: Element) -> None:
    for box in tree.all("div"):
        if box.attributes.get("class") == "scroll":
            assert (box.attributes["tabindex"], box.attributes["role"]) == ("0", "region")
            assert box.attributes["aria-label"]


def test_nothing_runs_and_nothing_is_loaded(page: str, tree: Element) -> None:
    assert not list(tree.all("script", "link", "iframe", "object", "embed", "img", "base", "form"))
    for element in tree.all():
        assert not [name for name in element.attributes if name.startswith("on") or name in {"src", "href", "srcset", "style"}]
    assert not re.search(r"https?:|url\(|@import|javascript:|//[a-z]", page.replace(HOSTILE, "").replace("postgresql://db", ""))
    policies = [element.attributes for element in tree.all("meta") if element.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert [policy["content"] for policy in policies] == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_names_are_shown_as_they_are_and_never_run() -> None:
    page = render(ANOMALIES)
    assert "<script" not in page
    tree = Tree(page).root
    assert f"{HOSTILE}/0" in [cell.text.strip() for cell in tree.all("th")]
    assert HOSTILE in [cell.text.strip() for cell in tree.all("td")]


def test_a_colour_is_never_alone(tree: Element) -> None:
    """Where a tone is all that a paragraph has beside its words, it has a sign, too."""
    for element in tree.all("p", "li"):
        if {"good", "bad", "doubt"} & set((element.attributes.get("class") or "").split()):
            assert element.text.strip()
            assert next(element.all("svg")).attributes["class"] == "icon"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, report in REPORTS.items():
        (GOLDEN / f"page-{name}.txt").write_text(lines(render(report)), "utf-8")
