"""`ackwise demo`: runs the demo and prints its result as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout

if TYPE_CHECKING:
    from rich.table import Table

    from ackwise.plugin.demo.demorun import Options, Played, Progress


#: With fewer messages the worker would finish before it is killed.
_FEWEST = 500


def demo(
    host: Annotated[
        Literal["aiokafka", "faust"], typer.Option(help="The host of the worker: `ackwise run` or `faust worker`.")
    ] = "aiokafka",
    kafka: Annotated[bool, typer.Option("--kafka", help="Start a real Kafka and two workers. Needs Java; downloads 44 MB once.")] = False,
    brokers: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="An existing Kafka. Default: an embedded one.")] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="The store of claims. Default: SQLite in --out.")] = None,
    messages: Annotated[int, typer.Option(min=_FEWEST, help="Number of messages that the shop sends.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same messages.")] = 1,
    out: Annotated[Path | None, typer.Option(help="A new folder for ledger, events, logs and report. Default: demo-<time>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Run an order-billing service, kill its worker with SIGKILL, and check its ledger. Needs nothing external.

    The shop sends orders: some twice, some that fail for a while or always, and some invalid bytes. The worker bills them into its
    ledger. It is killed half-way and started again; with --kafka a second worker runs throughout. With --host faust the worker is a
    Faust app with one extra line. The same app without that line runs next to it for comparison: its lost orders are counted only.

    Exit code 0: nothing was lost and the ledger is correct. 1: an order is lost, the ledger is wrong, or more orders were billed
    twice than were in flight at the kill: at most one batch of 50 on each of 8 partitions (three with Faust). An effect that was
    done but not yet marked is done again. 2: a stage failed to run. 128 + n: ended by signal n.
    """
    from ackwise.plugin.demo.demorun import Options
    from ackwise.plugin.registry import open_store
    from ackwise.plugin.settings.connecting import parse_brokers

    if kafka and brokers is not None:
        raise ConfigurationError("--kafka starts a Kafka and --brokers names one that runs; give one of the two")
    if brokers is not None:
        parse_brokers(brokers)
    if store is not None:
        open_store(store)  # a mistake in it shows here, and not in the log of a worker
    options = Options(messages, seed, out or Path(f"demo-{time.strftime('%Y%m%d-%H%M%S')}"), brokers, store, kafka, host)
    played = _play(options)
    failed = bool(_failures(played))
    if as_json:
        typer.echo(json.dumps(_facts(played, options, failed)))
    else:
        _show(played, options)
    raise typer.Exit(int(failed))


def _play(options: Options) -> Played:
    from aiokafka.errors import KafkaError

    from ackwise.plugin.demo.demorun import play

    try:
        with _progress() as (progress, say):
            return play(options, progress, say)
    except KafkaError as error:
        raise AckwiseError(f"the demo can't be played on this Kafka ({error}); leave --brokers out to use an embedded one") from error


_STAGES = {
    "start": "Kafka starts",
    "send": "the shop sends its orders",
    "bill": "the workers bill them",
    "kill": "a worker is killed",
    "reconcile": "the events are audited",
    "spark": "Spark audits them, too",
}


@contextmanager
def _progress() -> Iterator[tuple[Progress, Callable[[str], None]]]:
    """Yield two functions that draw progress bars and lines on stderr; stdout holds the result alone."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, Any] = {}
    bars = Progress(*columns, console=to_stderr())

    def progress(stage: str, done: int, total: int) -> None:
        bars.start()  # late: an error at the start stays a single line
        if stage not in tasks:
            tasks[stage] = bars.add_task(_STAGES[stage], total=total)
        bars.update(tasks[stage], completed=done)

    try:
        yield progress, lambda sentence: bars.console.print(escape(sentence))
    finally:
        if tasks:
            bars.stop()


def _failures(played: Played) -> list[str]:
    """Return what the demo must not find, a sentence each."""
    found, other = list(played.outcome.failures), played.on_spark
    if not isinstance(other, str) and other.differ:
        tables = ", ".join(f"{number:,} of {table}" for table, number in other.differ.items())
        found.append(f"the audit on Spark differs from that on this machine in rows: {tables}")
    return found


def _facts(played: Played, options: Options, failed: bool) -> dict[str, Any]:
    outcome = played.outcome
    return {
        "sent": outcome.sent,
        "billed": outcome.billed,
        "repeated_by_kill": outcome.repeated_by_kill,
        "suppressed": outcome.suppressed,
        "retried": outcome.retried,
        "dead": outcome.dead,
        "lost": outcome.lost,
        "ledger": {"expected": outcome.expected_cents, "actual": outcome.actual_cents, "repeated": outcome.repeated_cents},
        **({"stock": dataclasses.asdict(played.stock)} if played.stock is not None else {}),
        "host": options.host,
        "workers": options.workers,
        "kills": outcome.kills,
        "seed": options.seed,
        "report": {
            "exit": played.reconcile_exit,
            "verdicts": dict(played.verdicts),
            "flags": dict(played.flags),
            "path": str(played.report),
            "page": str(played.page),
            "seconds": round(played.seconds, 1),
            "spark": {"skipped": other}
            if isinstance(other := played.on_spark, str)
            else {**other._asdict(), "seconds": round(other.seconds, 1)},
        },
        "failures": _failures(played),
        "exit": int(failed),
    }


def _show(played: Played, options: Options) -> None:
    from rich.table import Table

    outcome, console, stock = played.outcome, to_stdout(), played.stock
    workers = "a worker" if options.workers == 1 else f"{options.workers} workers"
    title = f"Order billing by {workers}, killed {outcome.kills}×, seed {options.seed}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = [
        ("sent", f"{outcome.sent:,}", "messages that the broker acknowledged"),
        ("billed", f"{outcome.billed:,}", "orders in the ledger, each counted once"),
        (
            "repeated by the kill",
            f"{outcome.repeated_by_kill:,}",
            f"more entries for those orders; at most {outcome.in_flight} were in flight",
        ),
        ("suppressed", f"{outcome.suppressed:,}", "sent twice and run once"),
        *((f"retried after {level}", f"{copies:,}", "copies on the delay topic") for level, copies in outcome.retried.items()),
        *((f"dead: {reason}", f"{number:,}", "in the dead-letter topic") for reason, number in outcome.dead.items()),
        ("lost", f"{outcome.lost:,}", "neither billed nor dead"),
        ("to be charged", _money(outcome.expected_cents), "by what the shop sent"),
        ("charged", _money(outcome.actual_cents), "by the ledger, each order counted once"),
        ("charged again", _money(outcome.repeated_cents), "by the entries that the kill repeated"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(_verdicts(played.verdicts))
    flags = ", ".join(f"{name} {number:,}" for name, number in played.flags.items() if number)
    console.print(f"Flags beside the verdicts, several for some messages and none for most: {flags or 'none'}")
    for sentence in _repeats(played):
        console.print(sentence)
    console.print(_audits(played))
    for failure in _failures(played):
        console.print(f"[red]failed[/red] {escape(failure)}")
    if not _failures(played):
        again = f"; {outcome.repeated_by_kill:,} entries are repeats of the kill" if outcome.repeated_by_kill else ""
        console.print(f"[green]Nothing was lost and the ledger is correct{again}.[/green]")
    if stock is not None:
        console.print(
            f"The same worker without Ackwise lost {stock.lost:,} of the first {stock.passed:,} orders that it should have billed: "
            "they were committed and are in no ledger. Stock Faust loses a message when its agent raises, and then pauses for seconds."
        )
    console.print(f"Ledger, events and logs are in {escape(str(options.out))}, the report is {escape(str(played.page))}")


def _verdicts(verdicts: Mapping[str, int]) -> Table:
    """Return the verdicts of the audit, which add up to all messages."""
    from rich.table import Table

    table = Table(title="Verdicts of the audit", title_justify="left", show_header=False, show_footer=True)
    table.add_column(footer="all messages")
    table.add_column(footer=f"{sum(verdicts.values()):,}", justify="right")
    for name, number in verdicts.items():
        if number:
            table.add_row(name, f"{number:,}")
    return table


def _repeats(played: Played) -> list[str]:
    """Return where the repeats of the ledger are among the verdicts."""
    repeated = played.outcome.repeated_by_kill
    twice, maybe = played.verdicts.get("MULTI_EXECUTED", 0), played.verdicts.get("MAYBE_TWICE", 0)
    if not repeated and not maybe:
        return []
    shown = min(twice, repeated)
    return [
        f"Expected: the kill repeated {repeated:,} entries of the ledger, of orders that were billed and not yet marked as done.",
        f"{shown:,} of these repeats are MULTI_EXECUTED: both runs are in the events. {repeated - shown:,} are among the {maybe:,} "
        "MAYBE_TWICE: the killed worker could not record the first run. Of the other MAYBE_TWICE the events can't tell that they ran once.",
    ]


def _audits(played: Played) -> str:
    """Return how long both audits took, and whether they agree."""
    here = f"ackwise reconcile: exit code {played.reconcile_exit}, {played.seconds:.1f} s on this machine"
    if isinstance(played.on_spark, str):
        return f"{here}. Spark did not audit the events: {escape(played.on_spark)}."
    differ = sum(played.on_spark.differ.values())
    alike = "no row differs" if not differ else f"{differ:,} rows differ"
    return f"{here}; {played.on_spark.seconds:.1f} s on Spark, start included: of {played.on_spark.rows:,} rows in all tables {alike}."


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
