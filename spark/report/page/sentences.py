"""The sentences of the page's sections, and what was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ackwise.middleware.duration import format_duration
from ackwise.middleware.repairplan import NAME, SAFE, Summary
from ackwise.spark.fold.facts import Writer, WriterFate
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Production
from ackwise.spark.report.in_doubt import how_to_find
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.tone import Tone
from ackwise.spark.report.words import are, clock, counted, date, duration, instant, messages, were
from ackwise.spark.storeclaims.findings import ClaimReport
from ackwise.spark.vocabulary import PRODUCED_MEANINGS, ExitCode, ProducedVerdict

__all__ = [
    "OUTCOMES", "accounts_sentence", "claims_sentence", "evidence", "findings_sentence", "note", "outcome", "plan_sentence",
    "produced_sentences", "produced_tone", "read", "redriven_sentences", "subject", "untimed",
]  # fmt: skip

#: The name and the tone of each exit code.
OUTCOMES: Final[dict[ExitCode, tuple[str, Tone]]] = {
    ExitCode.CLEAN: ("clean", "good"),
    ExitCode.ANOMALIES: ("anomalies", "bad"),
    ExitCode.ERROR: ("not done", "bad"),
    ExitCode.INCONCLUSIVE: ("inconclusive", "doubt"),
}
_NAMED: Final = 5  # places in a sentence


def outcome(report: RunReport) -> tuple[str, Tone]:
    """Return the result in a word, and its tone."""
    return ("in doubt", "doubt") if report.is_in_doubt else OUTCOMES[report.exit_code]


def subject(report: RunReport) -> str:
    """Return the groups and the time."""
    groups = sorted({writer.group[1] for writer in report.writers if writer.group[1]})
    named = ", ".join(groups[:3]) + (f" and {len(groups) - 3} more groups" if len(groups) > 3 else "")
    if not report.writers:
        return named or "no events"
    first, last = min(writer.first_ts for writer in report.writers), max(writer.last_ts for writer in report.writers)
    until = f"{instant(last)}" if date(first) != date(last) else f"{clock(last)} UTC"
    since = report.config.since
    judged = "" if since is None else f"; only what has happened since {instant(round(since * 1e6))}, or was open then"
    return f"{named}, {instant(first).removesuffix(' UTC')} – {until} ({duration(last - first)}){judged}"


def accounts_sentence(accounts: Sequence[PartitionAccount]) -> tuple[str, Tone]:
    """Return whether the accounts balance."""
    wrong, partitions = sum(1 for account in accounts if account.balance), counted(len(accounts), "partition")
    if wrong:
        return f"{wrong:,} of {partitions} {'does' if wrong == 1 else 'do'} not balance. Nothing on this page can be relied on.", "bad"
    gaps, offsets = sum(account.gaps for account in accounts), sum(account.expected for account in accounts)
    each = f"{gaps:,} {were(gaps)} never in the log, every other one has exactly one verdict" if gaps else "each has exactly one verdict"
    return f"The accounts balance. Of {counted(offsets, 'offset')} in {partitions}, {each}.", "good"


def produced_tone(production: Production) -> Tone:
    """Return how the produced records stand."""
    number_of = production.number_of
    if any(account.lost for account in production.accounts) or production.not_published:
        return "bad"
    open_questions = production.orphaned + production.unread + number_of(ProducedVerdict.PARKED)
    return "doubt" if open_questions + number_of(ProducedVerdict.PUBLISH_UNKNOWN) else "good"


def produced_sentences(production: Production) -> list[str]:
    """Return what became of the produced records."""
    produced, lost = sum(account.produced for account in production.accounts), sum(account.lost for account in production.accounts)
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


def claims_sentence(claims: ClaimReport) -> tuple[str, Tone]:
    """Return whether the store and the events agree."""
    known = f"{claims.known:,} of {counted(claims.claims, 'key')} in {claims.store} are of these events"
    contradictions = sum(claims.counts.values())
    if not contradictions:
        return f"{known}, and nothing in them contradicts the events.", "doubt" if claims.without_claims else "good"
    return f"{known}; store and events disagree about {counted(contradictions, 'key')}.", "bad" if claims.anomalies else "doubt"


def plan_sentence(plan: Summary) -> str:
    """Return how much of the repair plan is without risk."""
    planned = sum(each.offsets for each in plan.planned)
    safe = sum(each.offsets for each in plan.planned if each.action in SAFE)
    repaired = f"“ackwise plan apply” repairs {'all' if safe == planned else f'{safe:,}'} of them without risk"
    review = "review {} before you do anything".format("the others" if safe else "each")
    means = "; ".join([*([repaired] if safe else []), *([review] if safe < planned else [])])
    sentence = f"{NAME} beside this page has steps for {counted(planned, 'offset')}: {means}."
    if not (later := plan.provisional):
        return sentence
    it = "it" if later == 1 else "them"
    return f"{sentence} {messages(later)} {are(later)} left out, since events that explain {it} may still come."


def redriven_sentences(report: RunReport) -> list[str]:
    """Return what became of the dead letters that were sent again, a sentence for each handler."""
    found = []
    for each in report.redriven:
        fates = ((each.succeeded, "succeeded"), (each.died_again, "died again"), (each.pending, "not ended yet"))
        counts = ", ".join(f"{number:,} {fate}" for number, fate in fates if number)
        found.append(f"{counted(each.letters, 'letter')} of {each.handler} in {each.group} sent again: {counts}.")
    return found


def findings_sentence(report: RunReport) -> str:
    """Return what the listed findings are a part of."""
    number = sum(tally.messages for tally in report.tallies if tally.is_anomaly)
    is_cut = number > len(report.findings) or len(report.missing) >= report.listed
    limit = f" At most {report.listed} messages and {report.listed} ranges of offsets are listed." if is_cut else ""
    rest = f" {counted(report.unlisted, 'more message')} in doubt, in {how_to_find(report)}" if report.unlisted else ""
    return f"By partition, what looks alike in one row.{limit} The tables “verdicts” and “missing” beside this page have all of them.{rest}"


def untimed(report: RunReport) -> str:
    """Return how many offsets have no time, or an empty text."""
    number = sum(sum(account.absent.values()) for account in report.accounts)
    return f" {counted(number, 'offset')} that no event is about {are(number)} not shown." if number else ""


def evidence(report: RunReport) -> list[str]:
    """Return what is missing or strange, a sentence each; empty if nothing is."""
    tails = sum(1 for writer in report.writers if writer.tail_is_unknown)
    they = "it" if tails == 1 else "they"
    died = [f"What {counted(tails, 'writer')} did last is unknown: {they} died with events not exported."] if tails else []
    return [*report.unreadable, *report.warnings, *died]


def note(writer: Writer) -> str:
    """Return how a writer ended."""
    if writer.tail_is_unknown:
        return f"{writer.fate}, its last events are unknown"
    return f"{writer.fate}, killed or cut off" if writer.fate is WriterFate.DEAD else str(writer.fate)


def read(report: RunReport) -> list[tuple[str, str]]:
    """Return what was read, and how it was judged."""
    config, events = report.config, sum(writer.last_seq + 1 for writer in report.writers) - report.missing_events
    tolerances = f"grace {format_duration(config.grace)}, writers dead after {format_duration(config.writer_timeout)}"
    if config.lateness:
        tolerances += f", events up to {format_duration(config.lateness)} late"
    for name, value in (("lease", config.lease), ("retention", config.retention)):
        tolerances += "" if value is None else f", {name} {format_duration(value)}"
    return [
        ("Folders", ", ".join(report.roots)),
        ("Files", f"{report.files:,} ({report.bytes / 1e6:,.1f} MB)"),
        ("Engine", report.engine),
        ("Events", f"{counted(events, 'event')} of {counted(len(report.writers), 'writer')}, {report.missing_events:,} missing"),
        ("Judged as of", instant(report.as_of) if report.as_of else "no event"),
        ("Tolerances", f"{tolerances}; configuration {config.fingerprint}"),
        *([] if report.produced is None else [("Produced", report.produced.path or "by the events")]),
        ("Run", report.run_id),
        ("Tables", report.output),
    ]
