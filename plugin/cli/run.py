"""`ackwise run module:app`: finds the app that the user wrote and runs it."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.logs import LogFormat, LogLevel, print_log
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.process.watchdog import AT_EXIT, Watchdog, code_of

__all__ = ["LogFormatOption", "LogLevelOption", "run"]

LogLevelOption = Annotated[LogLevel, typer.Option(help="What is logged to stderr.")]
LogFormatOption = Annotated[LogFormat, typer.Option(help="How: a text, or a JSON object per line.")]

WorkersOption = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Run so many worker processes, and keep them.")]
WatchOption = Annotated[
    int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Serve health, metrics and state on this port, as Watch does.")
]

#: Seconds after the drain within which the process is gone.
_EXIT_WITHIN: Final = 2.0

#: The exit code of what the command line says in one sentence.
_SAID: Final = 2


def run(
    target: Target,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    workers: WorkersOption = 1,
    watch: WatchOption = None,
) -> None:
    """Run the handlers of an app until SIGINT or SIGTERM; it drains and commits before it leaves.

    The module is looked for in the current folder first. A second signal cancels what still runs, the third kills.

    With --workers, a process that ends by itself is started again, after a back-off of 1 to 60 s. A signal drains them all. SIGHUP
    restarts them one after the other, with new code.

    Exit code 0: it drained and committed. 2: it can't start, or not go on. 128 + n: a second signal n ended it at once.
    A handler that raises SystemExit ends the worker with the code that it gives.
    """
    from ackwise.plugin.app import App

    print_log(log_level, log_format)
    app = find_app(target)
    if not isinstance(app, App):
        raise ConfigurationError(f"{target} is an app of Faust, whose own command runs it: faust -A {target} worker")
    if workers > 1:
        code = _supervise(target, log_level, log_format, workers, app.watch_port if watch is None else watch)
        AT_EXIT.arm(_EXIT_WITHIN, code)  # the module may have begun threads
        raise typer.Exit(code)
    try:
        app.run(watch=watch)
    except BaseException as error:
        AT_EXIT.arm(_EXIT_WITHIN, _SAID if isinstance(error, AckwiseError) else code_of(error))
        raise
    Watchdog().arm(_EXIT_WITHIN, 0)  # a thread of a store or of the event log may hang, and the interpreter waits for it


def _supervise(target: str, log_level: str, log_format: str, workers: int, port: int | None) -> int:
    """Keep so many worker processes; those that are watched have ports in a row, from `port` on."""
    import asyncio

    from ackwise.plugin.process.supervisor import Supervisor

    command = [sys.executable, "-m", "ackwise.plugin.cli", "run", target, "--log-level", log_level, "--log-format", log_format]
    ports = range(workers) if port else [0] * workers  # 0 is any free one
    if port and port + workers > 65536:
        raise ConfigurationError(f"{workers} workers need the ports from {port} on, and there is none above 65535; choose a lower one")
    options = [[] if port is None else ["--watch", str(port + each)] for each in ports]
    return asyncio.run(Supervisor([[*command, *each] for each in options]).run())
