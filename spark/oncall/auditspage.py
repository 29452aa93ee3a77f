"""The page of the last audits: what `ackwise reconcile` found, and each run's own page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.operate.table import Cell, Kind, Table, Value, command, count, link
from ackwise.plugin.web.lastseen import Seen
from ackwise.plugin.web.pages import HTML, Answer, Leaf, Named, Page
from ackwise.spark.oncall.audits import Audit, audits_below, page_of
from ackwise.spark.oncall.storypage import story_link
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, MEANINGS, Verdict

__all__ = ["audits_page", "report_page", "runs_seen"]

#: Findings of the last run that are shown; its own page has the others.
_FINDINGS: Final = 20

#: The report has a style of its own and nothing else; whatever lies in the file, no script in it runs.
_REPORT: Final = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"

_NO_RUNS: Final = "no folder of runs is known: give Events a folder, or --events or --runs to ackwise ui"

_RESULTS: Final[dict[int, tuple[str, Kind]]] = {0: ("clean", "good"), 1: ("anomalies", "bad"), 3: ("can't tell", "doubt")}

Found = tuple[list[Audit], list[str]]


def audits_page(seen: Seen[Found], folder: Path | None, named: Named) -> Page:
    """The page at `/audits`."""

    async def answer(query: Mapping[str, str]) -> Leaf:
        if folder is None:
            return Leaf("Audits", "sentence.html", {"sentence": _NO_RUNS, "tone": "doubt"})
        sight = await seen.now()
        found = {"runs": None} if sight.value is None else _values(*sight.value, folder, named)
        return Leaf("Audits", "audits.html", {"problem": sight.problem, **found})

    return Page("/audits", answer, "Audits")


def report_page(seen: Seen[Found]) -> Page:
    """The page at `/report?run=`: what a run wrote for people, as it is."""

    async def answer(query: Mapping[str, str]) -> Answer:
        audits = (await seen.now()).value or ([], [])
        run = next((each for each in audits[0] if each.name == query.get("run")), None)  # never a path of the client's making
        if run is None:
            raise ConfigurationError("there is no such run among the last ones; the page Audits links to each")
        try:
            return Answer(await asyncio.to_thread(page_of, run), HTML, policy=_REPORT)
        except OSError as error:
            raise ConfigurationError(f"the page of run {run.name} can't be read: {error.strerror}") from None

    return Page("/report", answer)


def runs_seen(folder: Path | None) -> Seen[Found]:
    """The runs in `folder`, for both pages."""
    return Seen(lambda: asyncio.to_thread(audits_below, Path() if folder is None else folder))


def _values(audits: Sequence[Audit], problems: Sequence[str], folder: Path, named: Named) -> dict[str, Any]:
    columns = "run", "as of", "result", "anomalies", "in doubt", "page"
    return {
        "problems": problems,
        "folder": folder,
        "runs": Table("The newest first", columns, [_run(each) for each in audits]),
        "new": named.command(("reconcile", *(named.events or ("EVENTS",)))),
        "last": None,
        **(_last(audits[0], named) if audits else {}),
    }


def _run(audit: Audit) -> tuple[Value, ...]:
    page = link(_report(audit), "report") if audit.has_page else "–"
    return audit.name, audit.as_of or "no events", _result(audit), count(audit.anomalies), count(audit.ambiguous), page


def _report(audit: Audit) -> str:
    return f"/report?run={quote(audit.name)}"


def _result(audit: Audit) -> Cell:
    word, tone = _RESULTS.get(audit.exit_code, (f"exit code {audit.exit_code}", "doubt"))
    return Cell(word, tone)


def _last(audit: Audit, named: Named) -> dict[str, Any]:
    columns = "message", "group", "handler", "verdict", "flags", "what became of it"
    findings = [
        (story_link(each.message), each.group, each.handler, each.verdict, each.flags, command(named.story(each.message)))
        for each in audit.findings[:_FINDINGS]
    ]
    verdicts = [_verdict(name, number) for name, number in audit.verdicts.items() if number]
    return {
        "last": audit,
        "result": _result(audit),
        "summary": f"{audit.anomalies:,} anomalies, {audit.ambiguous:,} in doubt, as of {audit.as_of or 'never'}",
        "report": _report(audit),
        "warnings": audit.warnings[:_FINDINGS],
        "verdicts": Table("Messages by verdict, the worst first", ("verdict", "messages", "meaning"), verdicts),
        "findings": Table(f"At most {_FINDINGS}", columns, findings),
        "plan": named.command(("plan", "show", str(audit.folder / "plan.jsonl"))),
    }


def _verdict(name: str, number: int) -> tuple[Value, ...]:
    verdict = Verdict.__members__.get(name)
    tone: Kind = "bad" if verdict in ANOMALIES else "doubt" if verdict in INCONCLUSIVE else ""
    return Cell(name, tone), count(number), MEANINGS[verdict] if verdict is not None else ""
