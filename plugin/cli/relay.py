"""`ackwise relay module:app`: the relays of an app in their own process; `--outbox URL`: an outbox without an app."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.command import find_app
from ackwise.plugin.cli.run import LogFormatOption, LogLevelOption, print_log
from ackwise.plugin.process.watchdog import Watchdog, collect_rarely

if TYPE_CHECKING:
    import asyncio

    from ackwise.middleware.policies.policies import Watch
    from ackwise.plugin.consumer.workerstate import RelayCounts
    from ackwise.plugin.topics.group import Group
    from ackwise.plugin.web.workermeasures import Sample


RelayWatchOption = Annotated[
    int | None, typer.Option("--watch", metavar="PORT", min=0, max=65535, help="Serve health and metrics of the relay on this port.")
]

Watched = Callable[[], "AbstractAsyncContextManager[None]"]

#: Seconds after the first signal, and after the second, until the process ends even if a task hangs.
_EXIT_WITHIN: Final = (30.0, 5.0)

_Target = Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="The app, such as [bold]billing.worker:app[/bold].")]
_Outbox = Annotated[
    str | None,
    typer.Option("--outbox", metavar="URL", help="Relay this outbox, such as [bold]postgresql://host/shop[/bold], without an app."),
]
_Brokers = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="With --outbox: the brokers. Default: localhost:9092.")]
_Events = Annotated[str | None, typer.Option(metavar="FOLDER", help="With --outbox: the folder of events. Default: none.")]


def relay(
    target: _Target = None,
    outbox: _Outbox = None,
    brokers: _Brokers = None,
    events: _Events = None,
    watch: RelayWatchOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
) -> None:
    """Move due messages from the delay topic of an app to their targets, and send the rows of its outbox, until SIGINT or SIGTERM. No
    handler runs. With --outbox it sends the rows of that outbox and needs no app.

    Several relays may run, next to workers that relay themselves; for an outbox in SQLite only one. With relay = apart no worker
    relays, and this command must run.

    Exit code 0: everything sent is acknowledged. 2: it can't start. 128 + n: a second signal n ended it at once.
    """
    import asyncio

    if outbox is not None and target is not None:
        raise ConfigurationError(f"both {target} and --outbox were given; an app names its outbox by use(Outbox(…)), so leave one out")
    if outbox is None and (brokers is not None or events is not None):
        raise ConfigurationError("--brokers and --events belong to --outbox; an app has its own")
    relaying = _of_app(target, watch) if outbox is None else _of_outbox(outbox, brokers, events, watch)
    print_log(log_level, log_format)
    collect_rarely()
    asyncio.run(relay_until_signalled(relaying))


_Relaying = Callable[["asyncio.Event"], Coroutine[Any, Any, None]]


def _of_app(target: str | None, port: int | None) -> _Relaying:
    if target is None:
        raise ConfigurationError("nothing to relay was named; give MODULE:APP, such as billing.worker:app, or --outbox URL")
    from ackwise.plugin.consumer.workerstate import RelayCounts

    group, counts = find_app(target).group(), RelayCounts()
    watched = watched_relay(port, group.settings.group, counts, used=group.slots.watch)
    return lambda stop: _relay_group(group, stop, counts, watched)


async def _relay_group(group: Group, stop: asyncio.Event, counts: RelayCounts, watched: Watched) -> None:
    from ackwise.plugin.outbox.outboxrelay import relay_group

    async with watched():
        await relay_group(group, stop, counts)


def watched_relay(
    port: int | None, name: str, counts: RelayCounts, more: Callable[[], Iterable[Sample]] = tuple, *, used: Watch | None = None
) -> Watched:
    """Return a context that serves the pages of relays if --watch or `used` asks for them. Raises `ConfigurationError`."""
    from contextlib import nullcontext

    if port is None:
        return nullcontext
    from ackwise.middleware.policies.policies import Watch
    from ackwise.plugin.settings.config import read_config

    try:
        from ackwise.plugin.web.workerpages import RelayWatch  # its dependencies are an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--watch needs {error.name}, which is not installed; pip install 'ackwise[watch]'") from None
    entries = read_config().of("watch")
    host = str(entries["host"].value) if "host" in entries else (used or Watch()).host
    return RelayWatch(Watch(port, host=host), name, counts, more).opened


def _of_outbox(url: str, brokers: str | None, events: str | None, port: int | None) -> _Relaying:
    import dataclasses

    from ackwise.middleware.policies.policies import Outbox
    from ackwise.plugin.consumer.workerstate import RelayCounts
    from ackwise.plugin.outbox.outboxrelay import AloneSettings, relay_outbox_apart
    from ackwise.plugin.registry import open_outbox, open_sink
    from ackwise.plugin.settings.config import read_config

    config = read_config()
    settings = config.without_app(AloneSettings, brokers)
    entries: dict[str, Any] = {name: entry.value for name, entry in config.of("outbox").items() if name not in ("store", "relay")}
    with config.sourced("outbox"):
        policy = dataclasses.replace(Outbox(url), **entries)
    store, counts = open_outbox(url), RelayCounts()
    watched = watched_relay(port, "outbox", counts)
    sink = None if events is None else open_sink(events, group="outbox", mode="before_settle", permissions=0o640, facts={})

    async def relaying(stop: asyncio.Event) -> None:
        from contextlib import AsyncExitStack

        async with watched(), AsyncExitStack() as opened:
            if sink is not None:
                opened.push_async_callback(sink.close)
                await sink.open()
            await relay_outbox_apart(store, policy, settings, stop, sink=sink, counts=counts)

    return relaying


async def relay_until_signalled(relay: _Relaying) -> None:
    """Run `relay`; the first signal sets its stop event, the second ends it at once. Raises its errors."""
    import asyncio

    stop, watchdog = asyncio.Event(), Watchdog()
    relaying = asyncio.ensure_future(relay(stop))
    second: list[int] = []

    def on_signal(number: signal.Signals) -> None:
        watchdog.arm(_EXIT_WITHIN[stop.is_set()], 128 + number)
        if stop.is_set():
            second.append(number)
            relaying.cancel()
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, on_signal, each)
    try:
        await relaying
    except asyncio.CancelledError:
        if not second:
            raise
        raise SystemExit(128 + second[0]) from None
    finally:
        watchdog.disarm()
