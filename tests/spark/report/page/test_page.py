"""The report as a page: what it says, and that its markup is sound. Needs no Spark.

After a wanted change, `python -m tests.spark.report.page.test_page` writes the golden texts anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.spark.report.reports import (
    ANOMALIES,
    CLEAN,
    DOUBT,
    EMPTY,
    HOSTILE,
    INCONCLUSIVE,
    NOW,
    ORPHANED,
    REPORTS,
    SECOND,
)

from ackwise.middleware.repairplan import Action, Planned, Summary
from ackwise.spark.advice import ADVICE, said
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.report.page.answers import headline, loss, repeat
from ackwise.spark.report.page.render import render
from ackwise.spark.report.page.sentences import (
    accounts_sentence,
    outcome,
    plan_sentence,
    redriven_sentences,
    subject,
)
from ackwise.spark.report.page.tables import flags_table
from ackwise.spark.report.report import Finding, Tally
from ackwise.spark.report.todo import todo
from ackwise.spark.report.words import duration
from ackwise.spark.storeclaims.findings import ClaimVerdict
from ackwise.spark.vocabulary import ANOMALIES as RED
from ackwise.spark.vocabulary import INCONCLUSIVE as UNKNOWN
from ackwise.spark.vocabulary import Flag, LogicalVerdict, ProducedVerdict, Verdict

GOLDEN = Path(__file__).with_name("golden")
VOID: Final = {"meta", "br"}
#: The elements that are a line of the golden text.
LINES: Final = {"h1", "h2", "h3", "p", "summary", "caption", "dt", "dd", "figcaption", "desc"}


def test_the_pages_say_what_they_said() -> None:
    for name, page in PAGES.items():
        anew = f"{name}; if that is wanted: python -m tests.spark.report.page.test_page"
        assert lines(page) == (GOLDEN / f"page-{name}.txt").read_text("utf-8"), anew


def test_a_run_over_a_part_of_the_time_says_so_before_it_says_that_nothing_was_lost() -> None:
    part = replace(CLEAN, config=replace(CLEAN.config, since=1_767_225_600.0))
    assert subject(part) == f"{subject(CLEAN)}; only what has happened since 2026-01-01 00:00:00 UTC, or was open then"


def test_the_headline_says_what_is_lost_unknown_and_in_doubt_beside_each_other() -> None:
    lost = replace(INCONCLUSIVE, tallies=[*INCONCLUSIVE.tallies, Tally("billing", "bill", "orders", Verdict.LOST, Flag(0), 2)])
    assert headline(lost).startswith("2 messages were lost, of 20 more it is not known")
    doubt = replace(INCONCLUSIVE, tallies=DOUBT.tallies)
    assert headline(doubt) == "No loss was found, but of 20 messages it is not known, 190 messages may have been done twice"


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


def test_every_kind_of_finding_has_advice_for_one_and_for_many() -> None:
    kinds = {*Verdict.__members__, *Flag.__members__, *LogicalVerdict.__members__, *ProducedVerdict.__members__, *ClaimVerdict.__members__}
    assert set(ADVICE) - {"UNREADABLE"} <= kinds
    assert set(ADVICE) >= {verdict.name for verdict in RED | UNKNOWN} | set(ProducedVerdict.__members__) | set(ClaimVerdict.__members__)
    for name in ADVICE:
        assert not set("{}") & set(said(name, 1) + said(name, 2))


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


def test_a_doubt_is_an_anomaly_only_if_it_is_strict_and_the_page_still_calls_it_a_doubt() -> None:
    strict = replace(DOUBT, config=replace(DOUBT.config, strict=True))
    assert (outcome(strict)[0], strict.exit_code) == ("in doubt", 1)


def test_what_was_consumed_and_not_produced_is_a_doubt() -> None:
    assert (outcome(ORPHANED)[0], ORPHANED.exit_code, [each.name for each in todo(ORPHANED)]) == ("in doubt", 0, ["ORPHAN_CONSUMED"])
    assert replace(ORPHANED, config=replace(ORPHANED.config, strict=True)).exit_code == 1


def test_the_answers_follow_the_verdict_and_the_flag() -> None:
    for verdict, flag, lost, twice in (
        (Verdict.IN_FLIGHT, Flag.COMMITTED_PAST, "Maybe", "No"),
        (Verdict.MAYBE_TWICE, Flag.AMBIGUOUS_EXEC, "No", "Maybe"),
        (Verdict.MAYBE_TWICE, Flag.REPEATED, "No", "Yes"),
        (Verdict.PHANTOM_SUPPRESSED, Flag(0), "Yes", "No"),
        (Verdict.RETRY_LOST, Flag(0), "Yes", "No"),
        (Verdict.DEAD_LETTERED, Flag(0), "No", "No"),
        (Verdict.UNKNOWN_EXPORT_GAP, Flag(0), "Not known", "No"),
    ):
        report = replace(EMPTY, tallies=[Tally("g", "bill", "orders", verdict, flag, 3)])
        assert (loss(report).answer, repeat(report).answer) == (lost, twice), verdict
    for report in (replace(CLEAN, unbounded=["g"]), replace(CLEAN, config=replace(CLEAN.config, since=NOW / SECOND + 1))):
        assert (report.exit_code, loss(report).answer) == (3, "Not known")


def test_accounts_that_do_not_balance_say_so_first() -> None:
    account = CLEAN.accounts[0]
    report = replace(CLEAN, accounts=[PartitionAccount(account.partition, 0, 600, False, account.messages, {}, 1)])
    assert accounts_sentence(report.accounts) == ("1 of 1 partition does not balance. Nothing on this page can be relied on.", "bad")
    assert "orders/0 | 0 | 600 | 600 | 100 |" in lines(render(report))


def test_many_partitions_are_cut_short_with_a_word() -> None:
    many = replace(CLEAN, accounts=[CLEAN.accounts[0]] * 250)
    assert "And 50 more partitions in summary.json." in render(many)


def test_durations_are_said_in_two_units_at_most() -> None:
    micros = (0, 999_499, 2_500_000, 3_000_000, 59_940_000, 185_000_000, 3_600_000_000, 86_399_000_000, 194_400_000_000)
    texts = ["0 ms", "999 ms", "2.5 s", "3 s", "59.9 s", "3 min 5 s", "1 h", "23 h 59 min", "2 d 6 h"]
    assert [duration(each) for each in micros] == texts


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


PAGES: Final = {name: render(report) for name, report in REPORTS.items()}
TREES: Final = {name: Tree(page).root for name, page in PAGES.items()}


def test_headings_tables_and_pictures_say_what_they_are_to_whoever_can_not_see_them() -> None:
    for name, tree in TREES.items():
        headings = list(tree.all("h1", "h2", "h3", "h4"))
        levels = [int(heading.tag[1]) for heading in headings]
        assert (levels[0], levels.count(1)) == (1, 1), name
        assert all(after <= before + 1 for before, after in pairwise(levels)), name
        questions = [heading.text for heading in headings if heading.tag == "h2"][:4]
        assert questions == ["Was anything lost?", "Was anything done twice?", "What do I do now?", "Accounts"]
        assert [child.text.strip() != "" for child in next(tree.all("head")).children if child.tag == "title"] == [True], name
        assert next(tree.all("html")).attributes["lang"] == "en"
        for table in tree.all("table"):
            assert (table.children[0].tag, table.children[0].text.strip() != "") == ("caption", True), name
            assert all(header.attributes.get("scope") in {"col", "row"} and header.text.strip() for header in table.all("th")), name
            columns = len(list(next(table.all("thead")).all("th")))
            assert {len(row.children) for row in table.all("tr")} == {columns}, name
        for picture in tree.all("svg"):
            if picture.attributes.get("aria-hidden") != "true":
                names = {child.attributes.get("id") for child in picture.all("title", "desc") if child.text.strip()}
                assert (picture.attributes["role"], len(names)) == ("img", 2), name
                assert names == set((picture.attributes["aria-labelledby"] or "").split()), name
        identifiers = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
        assert len(identifiers) == len(set(identifiers)), name
        for box in tree.all("div"):
            if box.attributes.get("class") == "scroll":
                assert (box.attributes["tabindex"], box.attributes["role"], bool(box.attributes["aria-label"])) == ("0", "region", True)


def test_a_colour_is_never_alone() -> None:
    """Where a tone is all that a paragraph has beside its words, it has a sign, too."""
    for tree in TREES.values():
        for element in tree.all("p", "li"):
            if {"good", "bad", "doubt"} & set((element.attributes.get("class") or "").split()):
                assert element.text.strip()
                assert next(element.all("svg")).attributes["class"] == "icon"


def test_nothing_runs_and_nothing_is_loaded() -> None:
    for name, tree in TREES.items():
        assert not list(tree.all("script", "link", "iframe", "object", "embed", "img", "base", "form")), name
        for element in tree.all():
            assert not [attr for attr in element.attributes if attr.startswith("on") or attr in {"src", "href", "srcset", "style"}], name
        ours = PAGES[name].replace(HOSTILE, "").replace("postgresql://db", "")
        assert not re.search(r"https?:|url\(|@import|javascript:|//[a-z]", ours), name
        policies = [meta.attributes for meta in tree.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy"]
        assert [policy["content"] for policy in policies] == ["default-src 'none'; style-src 'unsafe-inline'"], name


def test_names_are_shown_as_they_are_and_never_run() -> None:
    page = render(ANOMALIES)
    assert "<script" not in page
    tree = Tree(page).root
    assert f"{HOSTILE}/0" in [cell.text.strip() for cell in tree.all("th")]
    assert HOSTILE in [cell.text.strip() for cell in tree.all("td")]


def test_a_plan_is_said_to_repair_no_more_than_it_does() -> None:
    safe, review = Planned(Action.REDELIVER, 1, 4), Planned(Action.REVIEW, 2, 6)
    apply = "“ackwise plan apply” repairs"
    for planned, expected in (
        ([safe], f"steps for 4 offsets: {apply} all of them without risk."),
        ([safe, review], f"steps for 10 offsets: {apply} 4 of them without risk; review the others before you do anything."),
        ([review], "steps for 6 offsets: review each before you do anything."),
    ):
        assert plan_sentence(Summary("/out/plan.jsonl", planned, 0)).endswith(expected)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, report in REPORTS.items():
        (GOLDEN / f"page-{name}.txt").write_text(lines(render(report)), "utf-8")
