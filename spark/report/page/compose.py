"""The whole page as data, from a report. Pure: the same report gives the same data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from ackwise.middleware.duration import format_duration
from ackwise.spark.fold.facts import Writer, WriterFate
from ackwise.spark.judge.accounts import Production
from ackwise.spark.judge.books import Book
from ackwise.spark.report.in_doubt import query
from ackwise.spark.report.page.answers import actions, headline, loss, repeat, waiting
from ackwise.spark.report.page.attempts import attempts_data, stuck_data
from ackwise.spark.report.page.charts import delays_data, timeline_data
from ackwise.spark.report.page.data import (
    BookRow,
    BooksData,
    FindingRow,
    Number,
    ProducedData,
    ProducedRow,
    ReasonRow,
    ReportData,
    RetryRow,
    VerdictRow,
    WriterRow,
)
from ackwise.spark.report.page.exports import exports_data
from ackwise.spark.report.page.history import OUTCOMES, runs_data
from ackwise.spark.report.page.latency import latency_data
from ackwise.spark.report.page.matrices import failures_data, verdicts_data
from ackwise.spark.report.page.plan import plan_data
from ackwise.spark.report.page.stories import stories_data
from ackwise.spark.report.page.strips import strips_data
from ackwise.spark.report.page.tone import Tone, tone_of
from ackwise.spark.report.page.words import clock, counted, date, duration, instant, were
from ackwise.spark.report.ranges import alike_offsets
from ackwise.spark.report.redriven import Redriven
from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import (
    ANOMALIES,
    FLAG_MEANINGS,
    MEANINGS,
    PRODUCED_MEANINGS,
    Account,
    CopyFate,
    Flag,
    ProducedVerdict,
    Verdict,
)

__all__ = ["report_data"]

_Kind = TypeVar("_Kind", Verdict, Flag)
_NAMED: Final = 5  # places in a sentence
_MOST_ROWS: Final = 200  # rows of a table, before it says how many more there are

_DOUBTFUL: Final[tuple[str, Tone]] = ("in doubt", "doubt")


def report_data(report: RunReport) -> ReportData:
    """Return the page's data for what a run found."""
    outcome, tone = _DOUBTFUL if report.is_in_doubt else OUTCOMES[report.exit_code]
    subject, gaps, details = _subject(report), _gaps(report), report.details
    return ReportData(
        title=f"{outcome} – {subject}",
        headline=headline(report),
        with_group=len({writer.group for writer in report.writers}) > 1,
        outcome=outcome,
        tone=tone,
        exit_code=int(report.exit_code),
        subject=subject,
        answers=[loss(report), repeat(report)],
        actions=actions(report),
        waiting=waiting(report),
        plan=plan_data(report.plan),
        books=_books(report.books) if report.books else None,
        produced=None if report.produced is None else _produced(report.produced),
        verdicts=_verdicts(report),
        flags=_rows(report, report.flags, FLAG_MEANINGS),
        matrix=verdicts_data(report, _MOST_ROWS),
        findings=_finding_rows(report),
        findings_sentence=_findings_sentence(report),
        strips=strips_data(details.strips),
        stories=stories_data(details.stories),
        latency=latency_data(details.latencies, _MOST_ROWS) if details.latencies else None,
        attempts=attempts_data(details.attempts, _MOST_ROWS),
        retries=[
            RetryRow(book.group, book.handler, book.topic, book.attempt, book.sent, *(book.fates[fate] for fate in CopyFate))
            for book in report.retry_books[:_MOST_ROWS]
        ],
        delays=delays_data(report.delays, _MOST_ROWS) if report.delays else None,
        dead_letters=_dead_letters(report),
        redriven=[_redriven(letters) for letters in report.redriven],
        failures=failures_data(details.failures, _MOST_ROWS),
        stuck=stuck_data(details.stuck, _MOST_ROWS),
        timeline=None if report.timeline is None else timeline_data(report.timeline, _untimed(report)),
        evidence=gaps or ["Every event that a writer numbered is there, and every log could be read to its end."],
        evidence_tone="doubt" if gaps else "good",
        exports=exports_data(details.exports, details.time),
        writers=[_writer(writer) for writer in report.writers[:_MOST_ROWS]],
        hidden_writers=max(0, len(report.writers) - _MOST_ROWS),
        runs=runs_data(report),
        read=_read(report),
    )


def _books(books: Sequence[Book]) -> BooksData:
    present = sorted({verdict for book in books for verdict in book.verdicts})
    rows = [_book_row(book, present) for book in books[:_MOST_ROWS]]
    wrong = sum(1 for book in books if book.balance)
    offsets = sum(book.expected for book in books)
    gaps, partitions = sum(book.gaps for book in books), counted(len(books), "partition")
    each = f"{gaps:,} {were(gaps)} never in the log, every other one has exactly one verdict" if gaps else "each has exactly one verdict"
    sentence = f"The books balance. Of {counted(offsets, 'offset')} in {partitions}, {each}."
    if wrong:
        sentence = f"{wrong:,} of {partitions} {'does' if wrong == 1 else 'do'} not balance. Nothing on this page can be relied on."
    total = BookRow(
        group="",
        partition="all",
        first=0,
        end=0,
        offsets=offsets,
        verdicts=[_number(sum(book.verdicts.get(verdict, 0) for book in books), verdict) for verdict in present],
        gaps=gaps,
        balance=sum(book.balance for book in books),
        rewound=False,
    )
    return BooksData(
        sentence=sentence,
        tone="bad" if wrong else "good",
        columns=[verdict.name for verdict in present],
        rows=rows,
        total=total,
        hidden=len(books) - len(rows),
    )


def _book_row(book: Book, present: Iterable[Verdict]) -> BookRow:
    return BookRow(
        group=book.partition.group[1],
        partition=f"{book.partition.topic}/{book.partition.partition}",
        first=book.start,
        end=book.committed,
        offsets=book.expected,
        verdicts=[_number(book.verdicts.get(verdict, 0), verdict) for verdict in present],
        gaps=book.gaps,
        balance=book.balance,
        rewound=book.rewound,
    )


def _produced(production: Production) -> ProducedData:
    rows = [
        ProducedRow(
            group=book.partition.group[1],
            partition=f"{book.partition.topic}/{book.partition.partition}",
            produced=book.produced,
            handled=book.accounts[Account.HANDLED],
            lost=book.lost,
            explained=book.accounts[Account.EXPLAINED],
            waiting=book.accounts[Account.WAITING],
            earlier=book.accounts[Account.EARLIER],
            orphans=book.orphans,
        )
        for book in production.books
    ]
    lost, late = sum(row.lost for row in rows), production.not_published
    number_of = production.number_of
    doubtful = production.orphaned + production.unread + number_of(ProducedVerdict.PARKED) + number_of(ProducedVerdict.PUBLISH_UNKNOWN)
    tone: Tone = "bad" if lost or late else "doubt" if doubtful else "good"
    return ProducedData(_produced_sentences(production, lost), tone, rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS))


def _produced_sentences(production: Production, lost: int) -> list[str]:
    produced = sum(book.produced for book in production.books)
    found = [
        f"Of {counted(produced, 'record')} that {were(produced)} produced, {lost:,} {were(lost)} passed by without having been received."
    ]
    unpublished = production.under_way + production.not_published
    if unpublished:
        late = f"{production.not_published:,} of them for longer than the grace (NOT_PUBLISHED)"
        found.append(f"{counted(unpublished, 'record')} {were(unpublished)} not published yet, {late}.")
    if production.orphaned:
        where = ", ".join(f"{each.topic}/{each.partition} {each.start}–{each.end - 1}" for each in production.orphans[:_NAMED])
        found.append(f"{counted(production.orphaned, 'record')} {were(production.orphaned)} consumed and not produced: {where}.")
    beside = (ProducedVerdict.PARKED, ProducedVerdict.PRODUCE_FAILED, ProducedVerdict.PUBLISH_UNKNOWN)
    found += [
        f"{counted(number, 'message')} {were(number)} {PRODUCED_MEANINGS[verdict]} ({verdict.name})."
        for verdict in beside
        if (number := production.number_of(verdict))
    ]
    return found


def _number(value: int, verdict: Verdict) -> Number:
    return Number(value, tone_of(verdict) if value else "plain")


def _verdicts(report: RunReport) -> list[VerdictRow]:
    rows = _rows(report, report.verdicts, {verdict: report.meaning(verdict) for verdict in report.verdicts})
    # Where some may have run twice, "once" is not green.
    return [replace(row, tone="doubt") if row.tone == "good" and row.meaning != MEANINGS[Verdict[row.name]] else row for row in rows]


def _rows(report: RunReport, numbers: Mapping[_Kind, int], meanings: Mapping[_Kind, str]) -> list[VerdictRow]:
    total = sum(report.verdicts.values())
    found = {kind: number for kind, number in numbers.items() if number}
    return [VerdictRow(kind.name or "", number, _share(number, total), tone_of(kind), meanings[kind]) for kind, number in found.items()]


def _finding_rows(report: RunReport) -> list[FindingRow]:
    return [
        FindingRow(
            found.verdict.name, _tone_of_finding(found.verdict), found.group, found.partition, found.offsets, found.handler, found.evidence
        )
        for found in alike_offsets(report)[:_MOST_ROWS]
    ]


def _tone_of_finding(verdict: Verdict) -> Tone:
    """Return the tone of a finding: one without an anomaly is listed for a flag that leaves a question."""
    return "bad" if verdict in ANOMALIES else "doubt"


def _findings_sentence(report: RunReport) -> str:
    messages = sum(tally.messages for tally in report.tallies if tally.is_anomaly)
    hidden = [name for name, number in (("messages", messages - len(report.findings)),) if number > 0]
    if len(report.missing) >= report.listed:
        hidden.append("ranges without events")
    limit = f" At most {report.listed} messages and {report.listed} ranges of offsets are listed." if hidden else ""
    all_of_them = "The tables “verdicts” and “missing” beside this page have all of them."
    rest = f" {counted(report.unlisted, 'more message')} in doubt, in Spark SQL: {query(report.output)}" if report.unlisted else ""
    return f"By partition, what looks alike in one row.{limit} {all_of_them}{rest}"


def _dead_letters(report: RunReport) -> list[ReasonRow]:
    total = sum(letters.messages for letters in report.dead_letters)
    ordered = sorted(report.dead_letters, key=lambda letters: (-letters.messages, letters.group, letters.handler, letters.reason))
    return [
        ReasonRow(letters.group, letters.handler, letters.reason, letters.messages, _share(letters.messages, total)) for letters in ordered
    ]


def _redriven(letters: Redriven) -> str:
    fates = ((letters.succeeded, "succeeded"), (letters.died_again, "died again"), (letters.pending, "not ended yet"))
    counts = ", ".join(f"{number:,} {fate}" for number, fate in fates if number)
    return f"{counted(letters.letters, 'letter')} of {letters.handler} in {letters.group} sent again: {counts}."


def _untimed(report: RunReport) -> int:
    return sum(sum(book.absent.values()) for book in report.books)


def _gaps(report: RunReport) -> list[str]:
    tails = sum(1 for writer in report.writers if writer.tail_is_unknown)
    found = [*report.unreadable, *report.warnings]
    if tails:
        found.append(
            f"What {counted(tails, 'writer')} did last is unknown: {'it' if tails == 1 else 'they'} died with events not exported."
        )
    return found


def _writer(writer: Writer) -> WriterRow:
    return WriterRow(
        writer=f"{writer.writer_id & (2**64 - 1):016x}",
        client=writer.client,
        group=writer.group[1],
        mode=writer.mode,
        fate=str(writer.fate),
        tone="doubt" if writer.tail_is_unknown else "plain",
        first=instant(writer.first_ts),
        last=instant(writer.last_ts),
        events=writer.last_seq + 1,
        note="its last events are unknown" if writer.tail_is_unknown else "killed or cut off" if writer.fate is WriterFate.DEAD else "",
    )


def _read(report: RunReport) -> list[tuple[str, str]]:
    config = report.config
    tolerances = f"grace {format_duration(config.grace)}, writers dead after {format_duration(config.writer_timeout)}"
    if config.lateness:
        tolerances += f", events up to {format_duration(config.lateness)} late"
    for name, value in (("lease", config.lease), ("retention", config.retention)):
        tolerances += "" if value is None else f", {name} {format_duration(value)}"
    return [
        ("Folders", ", ".join(report.roots)),
        ("Files", f"{report.files:,} ({report.bytes / 1e6:,.1f} MB)"),
        ("Engine", report.engine),
        ("Events", _events(report)),
        ("Judged as of", instant(report.as_of) if report.as_of else "no event"),
        ("Tolerances", f"{tolerances}; configuration {config.fingerprint}"),
        *([] if report.produced is None else [("Produced", report.produced.path or "by the events")]),
        ("Run", report.run_id),
        ("Tables", report.output),
    ]


def _events(report: RunReport) -> str:
    events = sum(writer.last_seq + 1 for writer in report.writers) - report.missing_events
    return f"{counted(events, 'event')} of {counted(len(report.writers), 'writer')}, {report.missing_events:,} missing"


def _subject(report: RunReport) -> str:
    groups = sorted({writer.group[1] for writer in report.writers if writer.group[1]})
    named = ", ".join(groups[:3]) + (f" and {len(groups) - 3} more groups" if len(groups) > 3 else "")
    if not report.writers:
        return named or "no events"
    first, last = min(writer.first_ts for writer in report.writers), max(writer.last_ts for writer in report.writers)
    until = f"{instant(last)}" if date(first) != date(last) else f"{clock(last)} UTC"
    since = report.config.since
    judged = "" if since is None else f"; only what has happened since {instant(round(since * 1e6))}, or was open then"
    return f"{named}, {instant(first).removesuffix(' UTC')} – {until} ({duration(last - first)}){judged}"


def _share(number: int, total: int) -> float:
    """Return a share that is 0 or 1 only if it is exactly that."""
    if number in (0, total):
        return float(bool(number))
    return min(max(round(number / total, 4), 0.0001), 0.9999)
