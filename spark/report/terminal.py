"""The report as tables in a terminal: the accounts first, then verdicts and flags, then what needs a look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ackwise.middleware.repairplan import Summary
from ackwise.spark.instants import as_datetime
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Production
from ackwise.spark.report.in_doubt import doubt_sentences, how_to_find
from ackwise.spark.report.ranges import alike_offsets
from ackwise.spark.report.redriven import Redriven
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.todo import ToDo, todo
from ackwise.spark.report.words import counted
from ackwise.spark.storeclaims.findings import CLAIM_ANOMALIES, ClaimReport
from ackwise.spark.vocabulary import (
    ANOMALIES,
    FLAG_MEANINGS,
    INCONCLUSIVE,
    PRODUCED_MEANINGS,
    RED,
    Account,
    ExitCode,
    Flag,
    ProducedVerdict,
    Verdict,
)

__all__ = ["show"]

_DOUBTFUL: Final = (
    "[yellow]in doubt[/]: every committed message is accounted for, but not each is known to have {been}; exit code {code}{advice}"
)
_OUTCOMES: Final = {
    ExitCode.CLEAN: "[green]clean[/]: every committed message is accounted for",
    ExitCode.ANOMALIES: "[red]anomalies[/]: {anomalies:,} things to look at",
    ExitCode.INCONCLUSIVE: "[yellow]inconclusive[/]: no anomaly, but events are missing that could show one",
}
_MOST_ROWS: Final = 40  # rows of a table, before it says how many more there are


def show(report: RunReport, console: Console) -> None:
    """Print the report."""
    if report.accounts:
        console.print(_accounts(report.accounts))
    if report.produced is not None:
        console.print(_produced(report.produced))
    if report.verdicts:
        console.print(_verdicts(report))
    if report.flags:
        console.print(_flags(report))
    if report.findings or report.doubtful or report.missing:
        console.print(_findings(report))
    if report.unlisted:
        console.print(f"[dim]{report.unlisted:,} more in doubt, in {escape(how_to_find(report))}[/]", soft_wrap=True)
    for finding in report.logical:
        name = f"[red]{finding.verdict.name}[/]"
        console.print(f"{name}: {finding.hashes:,} dedup hashes of {escape(finding.handler)} in {escape(finding.group)}", soft_wrap=True)
    if report.produced is not None:
        for kind, number in report.produced.numbers.items():
            if number:
                colour = "red" if kind is ProducedVerdict.NOT_PUBLISHED else "yellow"
                console.print(f"[{colour}]{kind.name}[/]: {number:,} records {PRODUCED_MEANINGS[kind]}", soft_wrap=True)
    for letters in report.redriven:
        console.print(_redriven(letters), soft_wrap=True)
    if report.claims is not None:
        _show_claims(report.claims, console)
    for sentence in (*report.unreadable, *report.warnings):
        console.print(f"[yellow]![/] {escape(sentence)}", soft_wrap=True)
    for sentence in doubt_sentences(report):
        console.print(f"[yellow]?[/] {escape(sentence)}", soft_wrap=True)
    for each in todo(report):
        _show_todo(each, console)
    if report.plan is not None and report.plan.planned:
        console.print(_plan(report.plan), soft_wrap=True)
    console.print(_outcome(report), soft_wrap=True)
    console.print(f"[dim]{_facts(report)}[/]", soft_wrap=True)
    console.print(f"report: {escape(report.page)}", soft_wrap=True)


def _plan(plan: Summary) -> str:
    offsets = sum(each.offsets for each in plan.planned)
    return f"what would repair it, of {offsets:,} offsets: [bold]ackwise plan show {escape(plan.path)}[/]"


def _show_todo(each: ToDo, console: Console) -> None:
    colour = {"bad": "red", "doubt": "yellow"}.get(each.tone, "dim")
    console.print(f"[{colour}]{each.name}[/] {each.number:,} {each.of}: {escape(each.action)}", soft_wrap=True)
    for command in (each.tells, each.mends):
        if command:
            console.print(f"    {escape(command)}", soft_wrap=True)


def _redriven(letters: Redriven) -> str:
    fates = ((letters.succeeded, "succeeded"), (letters.died_again, "[yellow]dead again[/]"), (letters.pending, "pending"))
    counts = ", ".join(f"{number:,} {fate}" for number, fate in fates if number)
    return f"redriven: {letters.letters:,} dead letters of {escape(letters.handler)} in {escape(letters.group)}: {counts}"


def _show_claims(claims: ClaimReport, console: Console) -> None:
    console.print(f"{claims.known:,} of {claims.claims:,} keys in {escape(claims.store)} are of these events", soft_wrap=True)
    for finding in claims.findings[:_MOST_ROWS]:
        colour = "red" if finding.finding in CLAIM_ANOMALIES else "yellow"
        place = escape(f"{finding.topic}/{finding.partition}/{finding.offset} ({finding.handler} in {finding.group})")
        record = f"; row {finding.key}" if finding.key else ""
        console.print(f"[{colour}]{finding.finding.name}[/]: {place}, by the events {finding.verdict.name}{record}", soft_wrap=True)
    for sentence in claims.sentences:
        console.print(f"[yellow]![/] {escape(sentence)}", soft_wrap=True)


def _outcome(report: RunReport) -> str:
    if report.is_in_doubt:
        been = "run once" if report.ambiguous or report.repeated else "run in order" if report.perhaps_overtaken else "been produced"
        return _DOUBTFUL.format(been=been, code=int(report.exit_code), advice="" if report.config.strict else ", or 1 with --strict")
    return _OUTCOMES[report.exit_code].format(anomalies=report.anomalies)


def _facts(report: RunReport) -> str:
    fates = Counter(writer.fate for writer in report.writers)
    writers = ", ".join(f"{number} {fate}" for fate, number in sorted(fates.items())) or "none"
    as_of = "" if report.as_of == 0 else f"as of {as_datetime(report.as_of):%Y-%m-%d %H:%M:%S} UTC; "
    sample = min(report.config.verify_sample, sum(tally.messages for tally in report.tallies))
    alike = f"up to {sample:,} messages judged once more by other means, with no difference; " if sample else ""
    read = f"{counted(report.files, 'file')}; engine: {report.engine}"
    return f"{as_of}{read}; writers: {writers}; {alike}tables and summary.json in {escape(report.output)}"


def _accounts(accounts: Sequence[PartitionAccount]) -> Table:
    table = Table(title="Accounts: every offset up to the last commit", title_justify="left")
    present = sorted({verdict for account in accounts for verdict in account.verdicts})
    groups = {account.partition.group for account in accounts}
    if len(groups) > 1:
        table.add_column("group", overflow="fold")
    table.add_column("partition", overflow="fold")
    for name in ("from", "before", "offsets", *(verdict.name.lower().replace("_", " ") for verdict in present), "gaps", "balance"):
        table.add_column(name, justify="right", overflow="fold")
    for account in accounts[:_MOST_ROWS]:
        group = [escape(account.partition.group[1])] if len(groups) > 1 else []
        counts = [_count(account.verdicts.get(verdict, 0), verdict) for verdict in present]
        balance = "[green]0[/]" if account.balance == 0 else f"[red]{account.balance:+d}[/]"
        offsets = [str(account.start), str(account.committed), f"{account.expected:,}"]
        table.add_row(
            *group, escape(f"{account.partition.topic}/{account.partition.partition}"), *offsets, *counts, f"{account.gaps:,}", balance
        )
    if len(accounts) > _MOST_ROWS:
        table.caption = f"and {len(accounts) - _MOST_ROWS} more partitions in summary.json"
    return table


def _produced(production: Production) -> Table:
    table = Table(title="Produced, by what became of it", title_justify="left")
    groups = {account.partition.group for account in production.accounts}
    if len(groups) > 1:
        table.add_column("group", overflow="fold")
    table.add_column("partition", overflow="fold")
    for name in ("produced", "received", "lost", "otherwise", "not come to", "earlier", "orphans"):
        table.add_column(name, justify="right", overflow="fold")
    for account in production.accounts[:_MOST_ROWS]:
        group = [escape(account.partition.group[1])] if len(groups) > 1 else []
        counts = [account.produced, account.counts[Account.HANDLED]]
        lost = f"[red]{account.lost:,}[/]" if account.lost else "[dim]0[/]"
        rest = [account.counts[Account.EXPLAINED], account.counts[Account.WAITING], account.counts[Account.EARLIER], account.orphans]
        cells = [*(f"{number:,}" for number in counts), lost, *(f"{number:,}" for number in rest)]
        table.add_row(*group, escape(f"{account.partition.topic}/{account.partition.partition}"), *cells)
    if len(production.accounts) > _MOST_ROWS:
        table.caption = f"and {len(production.accounts) - _MOST_ROWS} more partitions in summary.json"
    return table


def _verdicts(report: RunReport) -> Table:
    """Return one verdict a row, which add up to all messages."""
    table = Table(title="Verdicts: one on each message", title_justify="left", show_footer=True)
    table.add_column("verdict", footer="all", overflow="fold")
    table.add_column("messages", footer=f"{sum(report.verdicts.values()):,}", justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for verdict, number in report.verdicts.items():
        table.add_row(verdict.name, _count(number, verdict), report.meaning(verdict))
    return table


def _flags(report: RunReport) -> Table:
    table = Table(title="Flags: beside the verdict, several on some messages", title_justify="left")
    table.add_column("flag", overflow="fold")
    table.add_column("messages", justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for flag, number in report.flags.items():
        table.add_row(flag.name, _count(number, flag), FLAG_MEANINGS[flag])
    return table


def _findings(report: RunReport) -> Table:
    """One row for all messages of a partition that look alike."""
    found = alike_offsets(report)
    table = Table(
        title=f"To look at, the first {report.listed}", title_justify="left", caption="the tables verdicts and missing have all of them"
    )
    with_group = len({row.group for row in found}) > 1
    for name in ("verdict", *(["group"] if with_group else []), "partition", "offsets", "handler", "evidence"):
        table.add_column(name, overflow="fold")
    for row in found[:_MOST_ROWS]:
        name = f"[red]{row.verdict.name}[/]" if row.verdict in ANOMALIES else row.verdict.name
        group = [escape(row.group)] if with_group else []
        table.add_row(name, *group, escape(row.partition), row.offsets, escape(row.handler), escape(row.evidence))
    return table


def _count(number: int, kind: Verdict | Flag) -> str:
    if number == 0:
        return "[dim]0[/]"
    # A flag may be equal to a verdict: both are numbers.
    verdict = kind if isinstance(kind, Verdict) else None
    colour = "red" if verdict in ANOMALIES or (isinstance(kind, Flag) and kind in RED) else "yellow" if verdict in INCONCLUSIVE else ""
    return f"[{colour}]{number:,}[/]" if colour else f"{number:,}"
