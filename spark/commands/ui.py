"""`ackwise ui`: pages for whoever is on call."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli import deadletteroptions as letters
from ackwise.plugin.cli.command import wait_for, with_options
from ackwise.plugin.cli.console import to_stderr
from ackwise.spark.commands import options

if TYPE_CHECKING:
    import socket

    from ackwise.plugin.operate.deadlettertopics import Place
    from ackwise.plugin.web.oncallsite import Access
    from ackwise.plugin.web.pages import Named, Page

__all__ = ["ui"]

_OPTIONS: Final = "--port"

#: Seconds after the last page within which the process is gone.
_EXIT_WITHIN: Final = 2.0


@with_options
def ui(
    whose: letters.Whose,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port of the pages; 0 takes any free one.")] = 9400,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; one that other machines reach needs a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that a browser must give as password. Default: ACKWISE_UI_TOKEN."),
    ] = None,
    events: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="The folder of the events, repeatable. Default: that of the app's Events.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where reconcile put its runs. Default: runs/ in the first folder of the events.")
    ] = None,
    *,
    where: letters.Where,
) -> None:
    """Serve the on-call web UI: the status of a group, its dead letters by cause, the story of a message, the last audits.

    The pages show what [bold]status[/bold], [bold]dlq list[/bold], [bold]dlq show[/bold] and [bold]why[/bold] print, and change nothing:
    next to each finding is the command that acts on it. They hold values of messages. Without a token only this machine can open them.

    Exit code 0: ended by Ctrl-C or SIGTERM. 2: it can't start; one sentence says why.
    """
    place = where.place(whose)
    folders = tuple(events or _folders_of(place))
    try:
        from ackwise.plugin.web.oncallsite import Access, token_of
        from ackwise.plugin.web.pages import Named
        from ackwise.plugin.web.pageserver import bound
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"ui needs {error.name}, which is not installed: pip install 'ackwise[watch]'") from None
    access = Access(token_of(token_file, os.environ))
    named = Named(whose, where.brokers, where.dlq, tuple(map(str, folders)))
    pages = _pages(place, named, folders, runs or next((folder / "runs" for folder in folders), None))
    wait_for(_serve(_checked(bound(host, port, "ui", _OPTIONS), access), place, pages, access))


def _checked(listening: socket.socket, access: Access) -> socket.socket:
    """`listening`, unless others would reach it unasked."""
    from ackwise.plugin.settings.config import UI_TOKEN
    from ackwise.plugin.web.oncallsite import is_own_address

    address = listening.getsockname()[0]
    if access.token is None and not is_own_address(address):
        listening.close()
        raise ConfigurationError(
            f"--host is an address that other machines reach ({address}), and the pages hold values of messages: set a token with "
            f"--token-file FILE or {UI_TOKEN}, or leave --host out and come by an SSH tunnel"
        )
    return listening


def _folders_of(place: Place) -> list[Path]:
    """The folder that the app writes its events to; none if it writes none, or elsewhere."""
    policy = None if place.app is None else place.app.events
    if policy is None or not isinstance(policy.sink, str | os.PathLike):
        return []
    from ackwise.stores.journal.sink import root_of

    return [root_of(policy.sink)]


def _pages(place: Place, named: Named, folders: tuple[Path, ...], runs: Path | None) -> list[Page]:
    from ackwise.plugin.web.oncallsite import letter_page, letters_page, status_page
    from ackwise.spark.oncall.auditspage import audits_page, report_page, runs_seen
    from ackwise.spark.oncall.storypage import story_page

    config = options.config_of(as_of=None, grace="1m", lateness="0s", writer_timeout="10m", lease=None, retention=None)
    seen = runs_seen(runs)
    return [
        status_page(place, named),
        letters_page(place, named),
        story_page(folders, config, named),
        audits_page(seen, runs, named),
        letter_page(place, named),
        report_page(seen),
    ]


async def _serve(listening: socket.socket, place: Place, pages: list[Page], access: Access) -> None:
    """Until a signal asks for an end."""
    import asyncio

    from ackwise.plugin.process.watchdog import Watchdog
    from ackwise.plugin.web.oncallsite import serve, site

    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    host, port = listening.getsockname()[:2]
    console = to_stderr()

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, soft_wrap=True)

    say(f"group {place.group}: http://{f'[{host}]' if ':' in host else host}:{port}/ until Ctrl-C")
    await serve(listening, site(place.group, pages, access, say), stop)
    Watchdog().arm(_EXIT_WITHIN, 0)  # a decoder of the app may hang in its thread, and the interpreter waits for it
