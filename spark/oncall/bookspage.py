"""The page of the last books: what `ackwise reconcile` found, and each run's own page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.ui.html import Html, alert, box, command, joined, link, listed, table, tag
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.page import Answer, File, Leaf, Page
from ackwise.plugin.ui.seen import Seen
from ackwise.spark.oncall.books import Books, books_below, page_of
from ackwise.spark.oncall.storypage import story_link
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, MEANINGS, Verdict

__all__ = ["books_page", "report_page", "runs_seen"]

#: Findings of the last run that are shown; its own page has the others.
_FINDINGS: Final = 20

#: The report has a style of its own and nothing else; whatever lies in the file, no script in it runs.
_REPORT: Final = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"

_RESULTS: Final = {0: ("clean", "good"), 1: ("anomalies", "bad"), 3: ("can't tell", "doubt")}

Found = tuple[list[Books], list[str]]


def books_page(seen: Seen[Found], folder: Path | None, named: Named) -> Page:
    """The page at `/books`."""

    async def answer(query: Mapping[str, str]) -> Leaf:
        if folder is None:
            return Leaf("Books", [alert("no folder of runs is known: give Events a folder, or --events or --runs to ackwise ui", "doubt")])
        sight = await seen.now()
        problem = [alert(sight.problem)] if sight.problem else []
        found = [] if sight.value is None else [*_parts(*sight.value, folder, named)]
        return Leaf("Books", [*problem, *found])

    return Page("/books", answer, "Books")


def report_page(seen: Seen[Found]) -> Page:
    """The page at `/report?run=`: what a run wrote for people, as it is."""

    async def answer(query: Mapping[str, str]) -> Answer:
        books = (await seen.now()).value or ([], [])
        run = next((each for each in books[0] if each.name == query.get("run")), None)  # never a path of the client's making
        if run is None:
            raise ConfigurationError("there is no such run among the last ones; the page of books links to each")
        try:
            return File(await asyncio.to_thread(page_of, run), _REPORT)
        except OSError as error:
            raise ConfigurationError(f"the page of run {run.name} can't be read: {error.strerror}") from None

    return Page("/report", answer)


def runs_seen(folder: Path | None) -> Seen[Found]:
    """The runs in `folder`, for both pages."""
    return Seen(lambda: asyncio.to_thread(books_below, Path() if folder is None else folder))


def _parts(books: Sequence[Books], problems: Sequence[str], folder: Path, named: Named) -> Iterator[Html]:
    yield from (alert(problem, "doubt") for problem in problems)
    if books:
        yield from _last(books[0], named)
    yield box(
        "Runs", table("The newest first", ("run", "as of", "result", "anomalies", "in doubt", "page"), [_run(each) for each in books])
    )
    events = named.events or ("EVENTS",)
    yield tag("p", f"Runs below {folder}. A new one: ", command(named.command(("reconcile", *events))), class_="muted")


def _run(books: Books) -> tuple[str | Html, ...]:
    page = link(f"/report?run={quote(books.name)}", "report") if books.has_page else "–"
    return books.name, books.as_of or "no events", _result(books), f"{books.anomalies:,}", f"{books.ambiguous:,}", page


def _result(books: Books) -> Html:
    word, tone = _RESULTS.get(books.exit_code, (f"exit code {books.exit_code}", "doubt"))
    return tag("strong", word, class_=tone)


def _last(books: Books, named: Named) -> Iterator[Html]:
    verdicts = [_verdict(name, number) for name, number in books.verdicts.items() if number]
    yield box(
        "The last run",
        tag("p", _result(books), f": {books.anomalies:,} anomalies, {books.ambiguous:,} in doubt, as of {books.as_of or 'never'}"),
        *([link(f"/report?run={quote(books.name)}", "its report")] if books.has_page else ()),
        listed([*books.warnings[:_FINDINGS]]),
        table("Messages by verdict, the worst first", ("verdict", "messages", "meaning"), verdicts),
    )
    if books.findings:
        rows = [(story_link(each.message), each.group, each.handler, each.verdict, each.flags, command(named.story(each.message)))
                for each in books.findings[:_FINDINGS]]  # fmt: skip
        columns = "message", "group", "handler", "verdict", "flags", "what became of it"
        yield box("What somebody should look at", table(f"At most {_FINDINGS}", columns, rows), *_repair(books, named))


def _repair(books: Books, named: Named) -> Iterator[Html]:
    if books.has_plan:
        yield joined([tag("p", "What would mend it: ", command(named.command(("plan", "show", str(books.folder / "plan.jsonl")))))])


def _verdict(name: str, number: int) -> tuple[str | Html, ...]:
    verdict = Verdict.__members__.get(name)
    tone = "bad" if verdict in ANOMALIES else "doubt" if verdict in INCONCLUSIVE else ""
    return tag("strong", name, class_=tone), f"{number:,}", MEANINGS[verdict] if verdict is not None else ""
