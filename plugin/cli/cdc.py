"""`ackwise cdc URL`: sends the changes in a database's log to Kafka; `--status` prints the position of the reader."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.markup import escape

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.command import wait_for
from ackwise.plugin.cli.console import shown, to_stdout
from ackwise.plugin.cli.relay import RelayWatchOption, relay_until_signalled, watched_relay
from ackwise.plugin.cli.run import LogFormatOption, LogLevelOption, print_log
from ackwise.plugin.operate.table import Table
from ackwise.plugin.process.watchdog import collect_rarely

if TYPE_CHECKING:
    import asyncio

    from ackwise.middleware.events import EventSink
    from ackwise.middleware.storage.changes import ChangeSource, SourceStatus
    from ackwise.plugin.outbox.cdcrelay import CdcRelay
    from ackwise.plugin.outbox.cdcroutes import Mapping
    from ackwise.plugin.web.workermeasures import Sample


_Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The database, such as [bold]postgresql://host/shop[/bold] or [bold]mariadb://user@host/shop[/bold]."
    ),
]
_Brokers = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where messages are sent. Default: localhost:9092.")]
_Slot = Annotated[
    str,
    typer.Option(
        help="The replication slot, which keeps the log until Kafka has it; on MariaDB and MySQL the name of the stored position."
    ),
]
_Publication = Annotated[str, typer.Option(help="The publication, which selects the tables; PostgreSQL only.")]
_Create = Annotated[
    bool,
    typer.Option("--create-slot", help="Create a missing publication and slot, or start at the end of the log if no position is stored."),
]
_Replace = Annotated[
    bool,
    typer.Option(
        "--replace-lost-slot",
        help="Start again at the end of the log after a slot was lost; read on after a change of what is read. See the page on it first.",
    ),
]
_Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="SCHEMA.TABLE", help="Read this table instead of the outbox; may be repeated."),
]
_Map = Annotated[
    str | None,
    typer.Option("--map", metavar="MODULE:FUNCTION", help="With --table: the function that turns a Change into an Outgoing or None."),
]
_OnError = Annotated[
    Literal["block", "skip"],
    typer.Option(help="After Kafka has refused a row for good: block its key until the row is requeued, or skip the row."),
]
_Events = Annotated[str | None, typer.Option(metavar="FOLDER", help="Where events go. Default: nowhere.")]
_Status = Annotated[bool, typer.Option("--status", help="Print the position of the slot and exit.")]
_AsJson = Annotated[bool, typer.Option("--json", help="With --status: one JSON object.")]


def cdc(
    url: _Url,
    brokers: _Brokers = None,
    slot: _Slot = "ackwise",
    publication: _Publication = "ackwise",
    create_slot: _Create = False,
    replace_lost_slot: _Replace = False,
    tables: _Tables = None,
    mapping: _Map = None,
    on_error: _OnError = "block",
    events: _Events = None,
    status: _Status = False,
    as_json: _AsJson = False,
    watch: RelayWatchOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
) -> None:
    """Send the rows of an outbox from the log of its database until SIGINT or SIGTERM. With --table and --map, send the changes of any
    table.

    The position in the log moves after Kafka has acknowledged everything before it. Several processes may run for one slot: one reads,
    the others wait to take over.

    Exit code 0: everything sent is acknowledged. 1: with --status, a problem or a warning was found. 2: it can't start or can't
    continue. 128 + n: a second signal n ended it at once.
    """
    import asyncio

    from ackwise.plugin.registry import open_changes

    if (mapping is None) != (not tables):
        raise ConfigurationError("--table and --map belong together: the function says what to send for a change of the table")
    source = open_changes(url, name=slot, publication=publication, tables=tables or (), create=create_slot, replace_lost=replace_lost_slot)
    if status:
        _show(wait_for(_status(source)), as_json)
        return
    relaying = _Relaying(source, url, brokers, _found(mapping) if mapping else None, on_error, events, watch)
    print_log(log_level, log_format)
    collect_rarely()
    asyncio.run(relay_until_signalled(relaying))


class _Relaying:
    """A relay of `source`, configured by the options."""

    def __init__(
        self,
        source: ChangeSource,
        url: str,
        brokers: str | None,
        mapping: Mapping | None,
        on_error: str,
        events: str | None,
        watch: int | None,
    ) -> None:
        from ackwise.plugin.outbox.outboxrelay import AloneSettings
        from ackwise.plugin.registry import open_outbox, open_sink
        from ackwise.plugin.settings.config import read_config

        config = read_config()
        self._settings = config.without_app(AloneSettings, brokers, client_id="ackwise-cdc")
        self._source, self._mapping, self._on_error, self._port = source, mapping, on_error, watch
        self._outbox = None if mapping else open_outbox(url)
        self._sink: EventSink | None = None
        if events is not None:
            self._sink = open_sink(events, group=f"cdc-{source.name}", mode="before_settle", permissions=0o640, facts={})

    async def __call__(self, stop: asyncio.Event) -> None:
        from contextlib import AsyncExitStack
        from functools import partial

        from ackwise.plugin.kafka.clients import brokers_answer
        from ackwise.plugin.outbox.cdcrelay import CdcRelay
        from ackwise.plugin.outbox.cdcroutes import MappedRows, OutboxRows
        from ackwise.plugin.producer.sender import Sender

        source = self._source
        async with AsyncExitStack() as opened:
            if self._sink is not None:
                opened.push_async_callback(self._sink.close)
                await self._sink.open()
            if self._outbox is not None:
                opened.push_async_callback(self._outbox.close)
                route: Any = OutboxRows(
                    self._outbox, source.outbox_row, owner=f"cdc/{source.name}", name=source.address, on_error=self._on_error
                )
            else:
                assert self._mapping is not None, "a table has a function"
                route = MappedRows(self._mapping)
            settings = self._settings
            relay = CdcRelay(
                source,
                route,
                new_sender=partial(Sender, settings),
                brokers_answer=partial(brokers_answer, settings.brokers, settings.client_id, settings.client_options),
                sink=self._sink,
            )
            async with self._watched(relay):
                await relay.run(stop)

    def _watched(self, relay: CdcRelay) -> AbstractAsyncContextManager[None]:
        if self._port is None:
            return nullcontext()
        from ackwise.plugin.consumer.workerstate import RelayCounts

        def measured() -> Iterable[Sample]:
            from ackwise.plugin.web.workermeasures import measures_of_cdc

            return measures_of_cdc(relay.counts)

        return watched_relay(self._port, f"cdc-{self._source.name}", RelayCounts(), measured)()


def _found(target: str) -> Mapping:
    """Return the function that `target`, a `module:function`, names. Raises `ConfigurationError`."""
    from ackwise.plugin.cli.command import find_attribute

    found = find_attribute(target, "a function", "shop.changes:to_message")
    if not callable(found):
        raise ConfigurationError(f"{target} is a {type(found).__name__}; --map needs a function that takes a Change")
    return cast("Mapping", found)


async def _status(source: ChangeSource) -> SourceStatus:
    try:
        return await source.status()
    finally:
        await source.close()


def _show(status: SourceStatus, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(status)))
    else:
        columns = "slot", "read", "acknowledged", "behind", "kept"
        kept, behind = (f"{size} bytes" if size is not None else "" for size in (status.retained, status.behind))
        cells = status.name, "now" if status.active else "by nobody", status.acknowledged, behind, kept
        to_stdout().print(shown(Table("", columns, [cells])))
        for finding in status.findings:
            to_stdout().print(escape(finding))
    raise typer.Exit(int(bool(status.findings)))
