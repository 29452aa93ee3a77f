"""`ackwise outbox …`: sets up, checks and maintains an outbox; prints tables or JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer
from rich.markup import escape

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.outbox import TransactionOutcome
from ackwise.plugin.cli.command import wait_for
from ackwise.plugin.cli.console import shown, to_stderr, to_stdout
from ackwise.plugin.cli.store import app_of, as_maintained
from ackwise.plugin.operate.table import Table
from ackwise.plugin.registry import open_outbox, open_sink

if TYPE_CHECKING:
    from ackwise.middleware.storage.outbox import HalfMessage, OutboxStatus, OutboxStore, Parked

#: Characters of a cell: rows are shown whole.
_CELL: Final = 100_000


HELP: Final = "An outbox: set it up, check it, list waiting and parked rows, and requeue them."

T = TypeVar("T")

_Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The outbox, such as [bold]postgresql://host/shop[/bold], or the app that uses it, such as [bold]billing.worker:app[/bold].",
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def init(url: _Url, as_json: _AsJson = False) -> None:
    """Create the missing tables of an outbox, and upgrade old ones to this version. A second call changes nothing.

    Workers and relays do this at their start, if their database user may create tables. If not, call it as a user who may.

    Exit code 0: the outbox can be used. 2: the database can't be reached, does not allow it, or has another version of the tables.
    """
    _, store = _found(url)
    wait_for(as_maintained(store).init())
    _print({"ready": True}, as_json, "ready")


def check(url: _Url, as_json: _AsJson = False) -> None:
    """Print the faults and risks of an outbox, one sentence each with the remedy. Changes nothing.

    Exit code 0: none found. 1: some found. 2: the database can't be reached, or has another version of the tables.
    """
    _, store = _found(url)
    found = wait_for(as_maintained(store).check())
    _print({"findings": found}, as_json, "\n".join(found) or "fine")
    raise typer.Exit(int(bool(found)))


def cleanup(url: _Url, as_json: _AsJson = False) -> None:
    """Delete expired records of an outbox, such as those of rolled-back transactions, in small steps. Relays may keep running.

    Waiting rows stay. Parked rows stay, unless the URL limits their age in seconds, as in [bold]?keep_parked=2592000[/bold].

    Exit code 0: done. 2: the database can't be reached, or does not allow it.
    """
    _, store = _found(url)
    with to_stderr().status("deleting expired records"):
        deleted = wait_for(as_maintained(store).cleanup())
    _print({"deleted": deleted}, as_json, f"{deleted} records deleted")


def status(url: _Url, as_json: _AsJson = False) -> None:
    """Show the numbers of waiting, prepared and parked rows, the age of the oldest of each, and the relays that send them.

    Exit code 0: no problem. 1: rows are parked, or rows wait and no relay runs. 2: the database can't be reached.
    """
    name, store = _found(url)
    found = wait_for(_open_and(store, lambda: store.status()))
    alone = bool(found.waiting) and not found.owners
    if as_json:
        typer.echo(json.dumps({"outbox": name, **_facts(found)}))
    else:
        _print_status(name, found, alone)
    raise typer.Exit(int(bool(found.parked) or alone))


def show_list(
    url: _Url,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 100,
    after: Annotated[int, typer.Option(min=0, help="Only rows with a higher number.")] = 0,
    prepared: Annotated[bool, typer.Option("--prepared", help="List the half messages instead, whose transaction is open.")] = False,
    expired: Annotated[bool, typer.Option("--expired", help="List the rows instead that expired unsent.")] = False,
    as_json: _AsJson = False,
) -> None:
    """List the parked rows, which are not sent until they are requeued. No payload is shown.

    Exit code 0: no row is parked, or --prepared or --expired is given. 1: rows are parked. 2: the database can't be reached.
    """
    if prepared and expired:
        raise ConfigurationError("both --prepared and --expired were given; give one of them")
    name, store = _found(url)
    if prepared:
        _show_prepared(name, wait_for(_open_and(store, lambda: store.prepared(limit=limit, after=after))), as_json)
        return
    what = "expired" if expired else "parked"
    ask = store.expired if expired else store.parked
    rows = wait_for(_open_and(store, lambda: ask(limit=limit, after=after)))
    if as_json:
        typer.echo(json.dumps({"outbox": name, what: [_row_facts(row) for row in rows]}))
    elif not rows:
        to_stdout().print(f"no row is {what}")
    else:
        columns = "row", "topic", "message id", "attempts", "checks", "cause"
        cells = [(row.id, row.topic, row.message_id, row.attempts, row.checks, row.cause) for row in rows]
        to_stdout().print(shown(Table("", columns, cells), _CELL))
    raise typer.Exit(int(bool(rows) and not expired))


def show(
    url: _Url,
    row: Annotated[int, typer.Argument(metavar="ROW", help="The number of a row, as [bold]ackwise outbox list[/bold] shows it.")],
    value: Annotated[bool, typer.Option("--value", help="Include its value, the payload of the message.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Show one parked row: its topic, key and headers, and why it is parked.

    Exit code 0: shown. 2: no such row is parked, or the database can't be reached.
    """
    _, store = _found(url)
    found = wait_for(_open_and(store, lambda: store.show(row)))
    if found is None:
        raise ConfigurationError(f"no row {row} is parked; ackwise outbox list shows those that are")
    facts = _row_facts(found) | {"headers": [[name, _shown(given)] for name, given in found.headers]}
    facts |= {"value": _shown(found.value)} if value else {"value_bytes": None if found.value is None else len(found.value)}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    cells = [(name.replace("_", " "), given if isinstance(given, str) else json.dumps(given)) for name, given in facts.items()]
    to_stdout().print(shown(Table("", ("", ""), cells), _CELL))


def requeue(
    url: _Url,
    rows: Annotated[list[int] | None, typer.Argument(metavar="[ROW]...", help="The numbers of parked rows.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All rows whose sending failed; not those that check-backs parked.")] = False,
    events: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder for the event of this command; default: none.")] = None,
    as_json: _AsJson = False,
) -> None:
    """Requeue parked rows: their attempts start again. Without ROW or --all it changes nothing and shows what --all would do.

    A row that check-backs parked may belong to a rolled-back transaction. Naming it sends it, so check it first.

    Exit code 0: done. 2: a named row is not parked, or the database can't be reached.
    """
    name, store = _found(url)
    if rows and every:
        raise ConfigurationError("both rows and --all were given; give one of them")
    found, done = wait_for(_open_and(store, lambda: _requeue(store, name, rows or [], every, events)))
    undecided = sum(not row.attempts for row in found) if not rows else 0
    if as_json:
        typer.echo(json.dumps({"outbox": name, "parked": len(found), "requeued": done, "undecided": undecided}))
        return
    if rows or every:
        to_stdout().print(f"{done} rows requeued; a relay sends them")
    else:
        to_stdout().print(f"{len(found) - undecided} rows would be requeued; add --all to do it, or name some of them")
    if undecided:
        to_stdout().print(f"{undecided} rows were parked by check-backs and may belong to rolled-back transactions; name them to send them")


def decide(
    url: _Url,
    tx_id: Annotated[
        str, typer.Argument(metavar="TX_ID", help="The transaction, as [bold]ackwise outbox list --prepared[/bold] shows it.")
    ],
    outcome: Annotated[Literal["commit", "rollback"], typer.Argument(help="How it ended: commit sends its messages, rollback drops them.")],
    as_json: _AsJson = False,
) -> None:
    """Decide the half messages of a transaction whose outcome you know, if no check-back can find it out.

    The first decision stands. A transaction that still runs may end the other way, so look at it first.

    Exit code 0: decided. 2: no message of it is prepared, or the database can't be reached.
    """
    _, store = _found(url)
    decided = wait_for(_open_and(store, lambda: store.decide(tx_id, TransactionOutcome(outcome))))
    if not decided:
        raise ConfigurationError(f"no message of the transaction {tx_id} is prepared; ackwise outbox list --prepared shows those that are")
    _print({"tx_id": tx_id, "decided": decided}, as_json, f"{decided} messages decided: {outcome}")


def release(url: _Url, as_json: _AsJson = False) -> None:
    """Change the kind of relay: from workers and ackwise relay to ackwise cdc, or back.

    Stop all relays first. No row is changed.

    Exit code 0: the next relay that starts sets the kind. 2: a relay still runs, or the database can't be reached.
    """
    _, store = _found(url)
    wait_for(_open_and(store, lambda: store.release_relay()))
    _print({"released": True}, as_json, "released; the next relay may be of either kind")


async def _requeue(store: OutboxStore, name: str, rows: Sequence[int], every: bool, events: str | None) -> tuple[list[Parked], int]:
    """Return the parked rows, and the number of requeued ones."""
    parked = await _all_parked(store)
    if missing := sorted(set(rows) - {row.id for row in parked}):
        raise ConfigurationError(
            f"rows {', '.join(map(str, missing))} are not parked; nothing was changed; ackwise outbox list shows the parked rows"
        )
    wanted = [row for row in parked if row.id in rows or (every and row.attempts)]
    if not wanted:
        return parked, 0
    done = await store.requeue([row.id for row in wanted])
    if events is not None:
        await _record(events, name, wanted)
    return parked, done


async def _all_parked(store: OutboxStore) -> list[Parked]:
    found: list[Parked] = []
    while more := await store.parked(limit=1000, after=found[-1].id if found else 0):
        found += more
    return found


async def _record(folder: str, name: str, rows: Sequence[Parked]) -> None:
    from ackwise.middleware.events import Event, EventCode

    sink = open_sink(folder, group="outbox", mode="before_settle", permissions=0o640, facts={"role": "ackwise outbox requeue"})
    await sink.open()
    try:
        for row in rows:
            attrs = json.dumps({"row": row.id, "outbox": name, "attempts": row.attempts})
            sink.record(Event(EventCode.OUTBOX_REQUEUED, row.topic, dedup_key=row.message_id, attrs=attrs))
        await sink.flush()
    finally:
        await sink.close()


def _found(url: str) -> tuple[str, OutboxStore]:
    """Return the name and the outbox of a URL or an app. Raises `ConfigurationError`."""
    from ackwise.middleware.policies.policies import Outbox
    from ackwise.plugin.outbox.outboxrelay import name_of_outbox

    if (application := app_of(url)) is None:
        return name_of_outbox(Outbox(url)), open_outbox(url)
    slots = application.group().slots
    store, policy = slots.open_outbox(), slots.outbox
    if store is None or policy is None:
        raise ConfigurationError(f"the app {url} uses no Outbox; add app.use(Outbox(…)), or give the URL of an outbox")
    return name_of_outbox(policy), store


async def _open_and(store: OutboxStore, ask: Callable[[], Awaitable[T]]) -> T:
    await store.open()
    try:
        return await ask()
    finally:
        await store.close()


def _print(facts: dict[str, Any], as_json: bool, said: str) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        to_stdout().print(escape(said))


def _facts(found: OutboxStatus) -> dict[str, Any]:
    ages = {"oldest": found.oldest, "oldest_prepared": found.oldest_prepared, "oldest_parked": found.oldest_parked}
    return {
        "waiting": found.waiting,
        "prepared": found.prepared,
        "parked": found.parked,
        "delayed": found.delayed,
        "expired": found.expired,
        **{name: None if age is None else round(age, 3) for name, age in ages.items()},
        "relays": dict(found.owners),
        "relay_kind": found.relay_kind,
    }


def _print_status(name: str, found: OutboxStatus, alone: bool) -> None:
    cells = [
        ("waiting to be sent", found.waiting, _age(found.oldest)),
        ("waiting for their time", found.delayed, _age(None)),
        ("prepared, their transaction is open", found.prepared, _age(found.oldest_prepared)),
        ("parked", found.parked, _age(found.oldest_parked)),
        ("expired unsent", found.expired, _age(None)),
    ]
    to_stdout().print(f"[bold]{escape(name)}[/bold]", shown(Table("", ("rows", "number", "oldest"), cells)))
    if found.owners:
        to_stdout().print(shown(Table("", ("relay", "shards"), sorted(found.owners.items())), _CELL))
    if alone:
        remedy = "ackwise cdc URL" if found.relay_kind == "cdc" else "a worker, or ackwise relay --outbox URL"
        to_stdout().print(f"rows wait and no relay runs; run {remedy}")
    if found.parked:
        to_stdout().print("parked rows are not sent; ackwise outbox list shows why, ackwise outbox requeue sends them")


def _show_prepared(name: str, rows: Sequence[HalfMessage], as_json: bool) -> None:
    if as_json:
        facts = [{"row" if field == "id" else field: given for field, given in row._asdict().items()} for row in rows]
        typer.echo(json.dumps({"outbox": name, "prepared": facts}))
    elif not rows:
        to_stdout().print("no row is prepared")
    else:
        columns = "row", "topic", "message id", "transaction", "producer group", "checks"
        cells = [(row.id, row.topic, row.message_id, row.tx_id, row.producer_group, row.checks) for row in rows]
        to_stdout().print(shown(Table("", columns, cells), _CELL))


def _age(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def _row_facts(row: Parked) -> dict[str, Any]:
    return {
        "row": row.id,
        "topic": row.topic,
        "message_id": row.message_id,
        "key": _shown(row.key),
        "attempts": row.attempts,
        "checks": row.checks,
        "cause": row.cause,
        "created_ms": row.created_ms,
    }


def _shown(given: bytes | None) -> str | None:
    """Return bytes as text if they are UTF-8, otherwise in base64."""
    if given is None:
        return None
    try:
        return given.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(given).decode()}"
