"""The report as tables in a terminal: the books first, then the verdicts, then what somebody should look at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ackwise.spark.books import Book
from ackwise.spark.report import RunReport
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, ExitCode, Flag, Verdict

__all__ = ["MEANINGS", "show"]

#: What each verdict says, in a few words.
MEANINGS: Final = {
    Verdict.LOST: "received, committed past, and never finished",
    Verdict.NEVER_SEEN: "committed past without having been received",
    Verdict.RETRY_LOST: "sent back, and its copy is nowhere",
    Verdict.PHANTOM_SUPPRESSED: "suppressed as done, and nobody did it",
    Verdict.STUCK: "claimed by a worker that died, and not taken up since",
    Verdict.MULTI_EXECUTED: "run with success more than once",
    Verdict.UNKNOWN_EXPORT_GAP: "the events that would say are missing",
    Verdict.IN_FLIGHT: "being run",
    Verdict.RETRYING: "sent back, to be delivered again",
    Verdict.PENDING: "received, and not begun",
    Verdict.SKIPPED_BY_SEEK: "jumped over by a seek",
    Verdict.DEAD_LETTERED: "in the dead-letter topic",
    Verdict.SKIPPED: "skipped on purpose",
    Verdict.DUPLICATE_SUPPRESSED: "a duplicate of one that was done, not run",
    Verdict.EXACTLY_ONCE: "run with success, once",
}
_OUTCOMES: Final = {
    ExitCode.CLEAN: "[green]clean[/]: every committed message is accounted for",
    ExitCode.ANOMALIES: "[red]anomalies[/]: {anomalies:,} things to look at",
    ExitCode.INCONCLUSIVE: "[yellow]inconclusive[/]: no anomaly, but events are missing that could show one",
}
_SHOWN: Final = 40  # rows of a table, before it says how many more there are


def show(report: RunReport, console: Console) -> None:
    """Print the report."""
    if report.books:
        console.print(_books(report.books))
    if report.verdicts:
        console.print(_verdicts(report))
    if report.findings or report.missing:
        console.print(_findings(report))
    for finding in report.logical:
        name = f"[red]{finding.verdict.name}[/]"
        console.print(f"{name}: {finding.hashes:,} dedup hashes of {escape(finding.handler)} in {escape(finding.group)}", soft_wrap=True)
    for sentence in (*report.unreadable, *report.warnings):
        console.print(f"[yellow]![/] {escape(sentence)}", soft_wrap=True)
    console.print(_OUTCOMES[report.exit_code].format(anomalies=report.anomalies))
    console.print(f"[dim]{_facts(report)}[/]", soft_wrap=True)


def _facts(report: RunReport) -> str:
    fates = Counter(writer.fate for writer in report.writers)
    writers = ", ".join(f"{number} {fate}" for fate, number in sorted(fates.items())) or "none"
    as_of = "" if report.as_of == 0 else f"as of {datetime.fromtimestamp(report.as_of / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC; "
    return f"{as_of}{report.files} files; writers: {writers}; tables and summary.json in {escape(report.output)}"


def _books(books: Sequence[Book]) -> Table:
    table = Table(title="Books: every offset up to the last commit", title_justify="left")
    present = sorted({verdict for book in books for verdict in book.verdicts})
    groups = {book.partition.group for book in books}
    if len(groups) > 1:
        table.add_column("group")
    table.add_column("partition")
    for name in ("from", "to", "offsets", *(verdict.name.lower().replace("_", " ") for verdict in present), "gaps", "balance"):
        table.add_column(name, justify="right")
    for book in books[:_SHOWN]:
        group = [escape(book.partition.group[1])] if len(groups) > 1 else []
        counts = [_count(book.verdicts.get(verdict, 0), verdict) for verdict in present]
        balance = "[green]0[/]" if book.balance == 0 else f"[red]{book.balance:+d}[/]"
        offsets = [str(book.start), str(book.committed), f"{book.expected:,}"]
        table.add_row(*group, escape(f"{book.partition.topic}/{book.partition.partition}"), *offsets, *counts, f"{book.gaps:,}", balance)
    if len(books) > _SHOWN:
        table.caption = f"and {len(books) - _SHOWN} more partitions in summary.json"
    return table


def _verdicts(report: RunReport) -> Table:
    table = Table(title="Verdicts", title_justify="left")
    table.add_column("verdict")
    table.add_column("messages", justify="right")
    table.add_column("")
    for verdict, number in report.verdicts.items():
        table.add_row(verdict.name, _count(number, verdict), MEANINGS[verdict])
    for flag, number in report.flags.items():
        table.add_row(f"[dim]+ {flag.name}[/]", _count(number, flag), f"[dim]{_FLAG_MEANINGS[flag]}[/]")
    return table


def _findings(report: RunReport) -> Table:
    """One row for all messages of a partition that look alike."""
    alike: dict[tuple[Verdict, str, str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for missing in report.missing:
        where = f"{missing.topic}/{missing.partition}"
        alike[missing.verdict, missing.group, where, "", "no event"].append((missing.start, missing.end - 1))
    for found in report.findings:
        where = f"{found.topic}/{found.partition}"
        last = f"{found.last_event}, attempt {found.attempt}" if found.attempt > 1 else found.last_event
        evidence = ", ".join([last, *(f"+{flag.name}" for flag in found.flags)])
        alike[found.verdict, found.group, where, found.handler, evidence].append((found.offset, found.offset))
    table = Table(
        title=f"To look at, the first {report.listed}", title_justify="left", caption="the tables verdicts and missing have all of them"
    )
    with_group = len({group for _, group, *_ in alike}) > 1
    for name in ("verdict", *(["group"] if with_group else []), "partition", "offsets", "handler", "evidence"):
        table.add_column(name, overflow="fold")
    for (verdict, *cells), spans in sorted(alike.items())[:_SHOWN]:
        group, where, handler, evidence = map(escape, cells)
        name = f"[red]{verdict.name}[/]" if verdict in ANOMALIES else verdict.name
        table.add_row(name, *([group] if with_group else []), where, _spans(spans), handler, evidence)
    return table


def _spans(spans: Iterable[tuple[int, int]]) -> str:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in joined)


def _count(number: int, kind: Verdict | Flag) -> str:
    if number == 0:
        return "[dim]0[/]"
    colour = "red" if kind in ANOMALIES or kind is Flag.COMMITTED_PAST else "yellow" if kind in INCONCLUSIVE else ""
    return f"[{colour}]{number:,}[/]" if colour else f"{number:,}"


_FLAG_MEANINGS: Final = {
    Flag.COMMITTED_PAST: "still open, and the group has committed past it",
    Flag.AMBIGUOUS_EXEC: "somebody else may have run it and died",
    Flag.UNCLAIMED: "run without a claim",
    Flag.REPEATED: "run with success again, without a claim",
    Flag.HAD_FAILURES: "a run of it failed",
    Flag.RETRIED: "sent back at least once",
    Flag.RESCUED_FROM_DLQ: "a dead letter that was run as well",
    Flag.DUP_AND_OK: "delivered again after it was done",
    Flag.ATTEMPT_HOLE: "no events of one of its attempts",
    Flag.NEG_LATENCY: "done before it was begun, by the clocks",
    Flag.BEYOND_TTL: "further apart than the store remembers",
}
