"""The report as a page: what it says, and that its markup is sound. Needs no Spark.

After a wanted change, `python -m tests.spark.report.page.test_page` writes the golden data anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from tests.spark.report.reports import ANOMALIES, CLEAN, DOUBT, EMPTY, HOSTILE, INCONCLUSIVE, ORPHANED, PRODUCED, REPEATED, REPORTS

from ackwise.spark.judge.books import Book
from ackwise.spark.report.page.compose import report_data
from ackwise.spark.report.page.render import render
from ackwise.spark.report.page.words import duration
from ackwise.spark.report.report import RunReport, Tally, to_json
from ackwise.spark.vocabulary import ACTIONS, Flag, Verdict

GOLDEN = Path(__file__).with_name("golden")
VOID: Final = {"meta", "br"}


def said(report: RunReport) -> str:
    """The data as text, to be compared."""
    return json.dumps(asdict(report_data(report)), indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_says_what_it_said(name: str) -> None:
    assert said(REPORTS[name]) == (GOLDEN / f"page-{name}.json").read_text("utf-8")


def test_a_clean_run_needs_nothing_to_be_done() -> None:
    data = report_data(CLEAN)
    assert (data.headline, data.actions, data.waiting) == ("Nothing was lost, nothing was done twice", [], "")
    assert [answer.answer for answer in data.answers] == ["No", "No"]


def test_a_run_over_a_part_of_the_time_says_so_before_it_says_that_nothing_was_lost() -> None:
    part = replace(CLEAN, config=replace(CLEAN.config, since=1_767_225_600.0))
    assert (
        report_data(part).subject == f"{report_data(CLEAN).subject}; only what has happened since 2026-01-01 00:00:00 UTC, or was open then"
    )


def test_a_loss_and_a_repetition_are_the_headline() -> None:
    data = report_data(ANOMALIES)
    assert data.headline == "9 messages were lost, 6 messages were done twice and 3 may have been, 1 is stuck"
    assert [(answer.answer, answer.tone) for answer in data.answers] == [("Yes", "bad"), ("Yes", "bad")]


def test_letters_that_were_sent_again_are_counted_by_what_became_of_them() -> None:
    fates = (
        (Verdict.EXACTLY_ONCE, Flag.REDRIVEN, 7),
        (Verdict.DEAD_LETTERED, Flag.REDRIVEN | Flag.DIED_AGAIN, 2),
        (Verdict.DEAD_LETTERED, Flag.REDRIVEN, 1),
    )
    report = replace(CLEAN, tallies=[Tally("billing", "<bill>", "orders", *fate) for fate in fates])
    sentence = "10 letters of <bill> in billing sent again: 7 succeeded, 2 died again, 1 not ended yet."
    assert report_data(report).redriven == [sentence]
    assert sentence.replace("<bill>", "&lt;bill&gt;") in render(report_data(report))


def test_every_verdict_that_calls_for_somebody_has_its_action_and_the_red_ones_come_first() -> None:
    found = report_data(ANOMALIES).actions
    assert [(action.name, action.number, action.of) for action in found] == [
        ("LOST", 4, "messages"), ("NEVER_SEEN", 5, "offsets"), ("STUCK", 1, "message"), ("MULTI_EXECUTED", 6, "messages"),
        ("COMMITTED_PAST", 1, "message"), ("LOGICAL_DUPLICATE", 2, "keys"), ("DEAD_LETTERED", 12, "messages"),
        ("AMBIGUOUS_EXEC", 3, "messages"),
    ]  # fmt: skip
    assert found[0].action == ACTIONS[Verdict.LOST]


def test_where_a_second_run_may_hide_nothing_on_the_first_screen_says_that_all_is_well() -> None:
    data = report_data(DOUBT)
    assert (data.outcome, data.tone, data.exit_code) == ("in doubt", "doubt", 0)
    assert data.headline == "Nothing was lost, 190 messages may have been done twice"
    (action,) = data.actions
    assert (action.name, action.number, action.tone) == ("AMBIGUOUS_EXEC", 190, "doubt")
    assert "effects of these messages in your own system, by their keys" in action.action
    assert "dead workers: w1 0000000000000001, w2 0000000000000002, w3 0000000000000003 and 1 more" in data.answers[1].because[0]
    maybe, once = data.verdicts
    assert (maybe.name, maybe.number, maybe.tone) == ("MAYBE_TWICE", 190, "doubt")
    assert (once.name, once.number, once.tone) == ("EXACTLY_ONCE", 798, "good")
    assert maybe.meaning == "run with success, and perhaps more than once: 190 in doubt"


def test_messages_in_doubt_are_listed_up_to_the_limit_and_the_rest_has_its_query() -> None:
    data = report_data(DOUBT)
    assert [(row.partition, row.offsets, row.tone) for row in data.findings] == [("orders/0", "100–149", "doubt")]
    assert "140 more messages in doubt, in Spark SQL: SELECT * FROM parquet.`/out/verdicts` WHERE " in data.findings_sentence


def test_a_doubt_is_an_anomaly_only_if_it_is_strict_and_the_page_still_calls_it_a_doubt() -> None:
    strict = replace(DOUBT, config=replace(DOUBT.config, strict=True))
    assert (report_data(strict).outcome, report_data(strict).exit_code) == ("in doubt", 1)


def test_of_what_is_known_to_have_run_twice_the_rest_may_have_is_said_beside_it() -> None:
    data = report_data(REPEATED)
    assert data.headline == "Nothing was lost, 10 messages were done twice and 190 may have been"
    assert data.verdicts[0].meaning == "run with success, and perhaps more than once: 190 in doubt and 10 run again"


def test_missing_events_do_not_hide_a_doubt() -> None:
    both = replace(INCONCLUSIVE, tallies=DOUBT.tallies)
    assert report_data(both).headline == "No anomaly was found, but events are missing, and 190 messages may have been done twice"


def test_what_is_missing_is_never_called_fine() -> None:
    data = report_data(INCONCLUSIVE)
    assert [answer.answer for answer in data.answers] == ["Not known", "None seen"]
    assert data.evidence_tone == "doubt"
    assert [action.name for action in data.actions] == ["UNKNOWN_EXPORT_GAP", "UNREADABLE"]


@pytest.mark.parametrize(
    ("verdict", "flag", "lost", "twice"),
    [
        (Verdict.IN_FLIGHT, Flag.COMMITTED_PAST, "Maybe", "No"),
        (Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC, "No", "Maybe"),
        (Verdict.MAYBE_TWICE, Flag.REPEATED, "No", "Yes"),
        (Verdict.PHANTOM_SUPPRESSED, Flag(0), "Yes", "No"),
        (Verdict.RETRY_LOST, Flag(0), "Yes", "No"),
        (Verdict.DEAD_LETTERED, Flag(0), "No", "No"),
    ],
)
def test_the_answers_follow_the_verdict_and_the_flag(verdict: Verdict, flag: Flag, lost: str, twice: str) -> None:
    report = replace(EMPTY, tallies=[Tally("g", "bill", "orders", verdict, flag, 3)])
    assert [answer.answer for answer in report_data(report).answers] == [lost, twice]


def test_what_was_produced_and_lost_on_the_way_is_lost() -> None:
    data = report_data(PRODUCED)
    assert data.headline == "9 messages were lost, nothing was done twice"
    assert [(action.name, action.number, action.of, action.tone) for action in data.actions] == [
        ("LOST_PRODUCED", 4, "offsets", "bad"), ("RETENTION_LOSS", 3, "offsets", "bad"), ("NOT_PUBLISHED", 2, "records", "bad"),
        ("ORPHAN_CONSUMED", 10, "records", "doubt"),
    ]  # fmt: skip
    assert data.produced is not None
    assert data.produced.sentences == [
        "Of 495 records that were produced, 4 were passed by without having been received.",
        "3 records were not published yet, 2 of them for longer than the grace (NOT_PUBLISHED).",
        "10 records were consumed and not produced: orders/0 100–109.",
    ]
    assert data.produced.tone == "bad"


def test_every_copy_that_was_sent_back_is_in_the_retry_book() -> None:
    row, _ = report_data(ANOMALIES).retries
    assert (row.attempt, row.sent, row.came, row.waiting, row.lost, row.unknown, row.overtaken) == (1, 100, 90, 2, 1, 3, 4)
    assert json.loads(to_json(ANOMALIES))["retry_books"][0] == {
        "group": "billing", "handler": "bill", "topic": "orders", "attempt": 1, "sent": 100, "came": 90, "waiting": 2, "lost": 1,
        "unknown": 3, "overtaken": 4,
    }  # fmt: skip


def test_what_was_consumed_and_not_produced_is_a_doubt() -> None:
    data = report_data(ORPHANED)
    assert (data.outcome, data.exit_code, [action.name for action in data.actions]) == ("in doubt", 0, ["ORPHAN_CONSUMED"])
    assert report_data(replace(ORPHANED, config=replace(ORPHANED.config, strict=True))).exit_code == 1
    assert report_data(CLEAN).produced is None


def test_books_that_do_not_balance_say_so_first() -> None:
    book = CLEAN.books[0]
    data = report_data(replace(CLEAN, books=[Book(book.partition, 0, 600, False, book.messages, {}, 1)])).books
    assert data is not None
    assert (data.sentence, data.tone, data.rows[0].balance) == (
        "1 of 1 partition does not balance. Nothing on this page can be relied on.", "bad", 100,
    )  # fmt: skip


def test_many_partitions_are_cut_short_with_a_word() -> None:
    many = replace(CLEAN, books=[CLEAN.books[0]] * 250)
    assert "And 50 more partitions in summary.json." in render(report_data(many))


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


@pytest.fixture(params=REPORTS)
def page(request: pytest.FixtureRequest) -> str:
    return render(report_data(REPORTS[request.param]))


@pytest.fixture
def tree(page: str) -> Element:
    return Tree(page).root


def test_the_same_data_gives_the_same_page(page: str) -> None:
    assert page in {render(report_data(report)) for report in REPORTS.values()}


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
    assert not re.search(r"https?:|url\(|@import|javascript:|//[a-z]", page.replace(HOSTILE, ""))
    policies = [element.attributes for element in tree.all("meta") if element.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert [policy["content"] for policy in policies] == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_names_are_shown_as_they_are_and_never_run() -> None:
    page = render(report_data(ANOMALIES))
    assert "<script" not in page
    tree = Tree(page).root
    assert f"{HOSTILE}/0" in [cell.text for cell in tree.all("th")]
    assert HOSTILE in [cell.text for cell in tree.all("td")]


def test_a_colour_is_never_alone(tree: Element) -> None:
    """Where a tone is all that a paragraph has beside its words, it has a sign, too."""
    for element in tree.all("p", "li"):
        if {"good", "bad", "doubt"} & set((element.attributes.get("class") or "").split()):
            assert element.text.strip()
            assert next(element.all("svg")).attributes["class"] == "icon"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, report in REPORTS.items():
        (GOLDEN / f"page-{name}.json").write_text(said(report), "utf-8")
