"""The page of audits: the last runs, from the summary of each, and the page that each wrote. Starts no Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.plugin.web.site.site import HOSTILE, Document, opened
from tests.spark.report.reports import ANOMALIES, CLEAN, INCONCLUSIVE

from ackwise.plugin.web.pages import Named, Page
from ackwise.spark.oncall.auditspage import audits_page, report_page, runs_seen
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.summary import to_json
from ackwise.spark.vocabulary import MEANINGS, Verdict


def write(runs: Path, name: str, report: RunReport, page: str = "<p>its page</p>") -> Path:
    """The folder of a run."""
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(to_json(report))
    (folder / "report.html").write_text(page)
    return folder


def pages_of(runs: Path | None) -> list[Page]:
    seen = runs_seen(runs)
    return [audits_page(seen, runs, Named("shop:app", events=("/events",))), report_page(seen)]


async def test_the_last_run_is_shown_with_what_somebody_should_look_at_and_what_to_call(tmp_path: Path) -> None:
    write(tmp_path, "20260101T000000Z-1", replace(CLEAN, as_of=CLEAN.as_of - 1_000_000))
    folder = write(tmp_path, "20260102T000000Z-2", ANOMALIES)
    async with opened(pages_of(tmp_path)) as site:
        page = await site.page("/audits")
    assert f"anomalies: {ANOMALIES.anomalies:,} anomalies, {ANOMALIES.ambiguous:,} in doubt" in page.text
    for verdict, number in ANOMALIES.verdicts.items():
        assert verdict.name in page.text
        assert f"{number:,}" in page.text
    assert MEANINGS[Verdict.LOST] in page.text
    first = ANOMALIES.findings[0]
    assert f"ackwise why {first.topic}/{first.partition}/{first.offset} /events" in page.commands
    assert f"ackwise plan show {folder}/plan.jsonl" in page.commands
    assert page.commands[-1] == "ackwise reconcile /events"
    assert page.text.index("20260102T000000Z-2") < page.text.index("20260101T000000Z-1")
    assert {"/report?run=20260102T000000Z-2", "/report?run=20260101T000000Z-1"} <= set(page.links)


async def test_each_result_has_its_word(tmp_path: Path) -> None:
    for word, report in (("clean", CLEAN), ("anomalies", ANOMALIES), ("can't tell", INCONCLUSIVE)):
        folder = write(tmp_path / word, "run", report)
        async with opened(pages_of(folder)) as site:  # the folder of the run itself
            assert f"{word}: {report.anomalies:,} anomalies" in (await site.page("/audits")).text


async def test_the_page_of_a_run_is_served_as_it_is_and_runs_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a run & more", CLEAN, "<script>alert(1)</script>")
    async with opened(pages_of(tmp_path)) as site:
        (target,) = {link for link in (await site.page("/audits")).links if link.startswith("/report")}
        async with site.client.get(target) as answer:
            assert await answer.text() == "<script>alert(1)</script>"
            policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert policy.endswith("sandbox")
    assert "script-src" not in policy


async def test_no_other_file_is_served(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write(runs, "run", CLEAN)
    write(tmp_path, "beside", CLEAN)
    async with opened(pages_of(runs)) as site:
        for name in ("../beside", str(tmp_path / "beside"), "run/../../beside", "", "run%2f", "RUN"):
            async with site.client.get("/report", params={"run": name}) as answer:
                assert answer.status == 404
                assert "there is no such run" in await answer.text()
        (runs / "run" / "report.html").unlink()
        await site.get("/report?run=run", 404)


async def test_a_summary_that_nobody_could_have_written_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    write(tmp_path, "good", CLEAN)
    for name, text in (("torn", '{"run'), ("list", "[]"), ("other", "{}"), ("deep", "[" * 100_000), ("bytes", "\ufffe")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    async with opened(pages_of(tmp_path)) as site:
        page = await site.page("/audits")
    for name in ("torn", "list", "other", "deep", "bytes"):
        assert f"{tmp_path / name / 'summary.json'} is not what ackwise reconcile writes" in page.text
    assert "clean: 0 anomalies" in page.text


async def test_hostile_names_in_a_summary_become_no_markup(tmp_path: Path) -> None:
    folder = write(tmp_path, "run", ANOMALIES)
    said = json.loads((folder / "summary.json").read_text())
    for finding in said["findings"]:
        finding.update(topic=HOSTILE, group=HOSTILE, handler=HOSTILE, verdict=HOSTILE, flags=[HOSTILE])
    said.update(as_of=HOSTILE, warnings=[HOSTILE], unreadable=[HOSTILE], verdicts={HOSTILE: 1})
    (folder / "summary.json").write_text(json.dumps(said))
    async with opened(pages_of(tmp_path)) as site:
        markup = await site.get("/audits")
    page = Document(markup)
    assert page.text.count("<script>alert(1)</script>") >= 8
    assert not {"script", "img"} & set(page.tags)
    assert page.handlers == []
    assert "\u202e" not in markup


async def test_without_runs_it_says_what_is_missing_and_how_to_make_one(tmp_path: Path) -> None:
    async with opened(pages_of(None)) as site:
        assert "no folder of runs is known" in (await site.page("/audits")).text
    async with opened(pages_of(tmp_path / "none")) as site:
        text = (await site.page("/audits")).text
        assert f"{tmp_path / 'none'} can't be listed (No such file or directory)" in text
        assert "ackwise reconcile /events" in text
    async with opened(pages_of(tmp_path)) as site:
        assert "ackwise reconcile /events" in (await site.page("/audits")).text
