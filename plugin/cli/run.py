"""`ackwise run module:app`: runs an app, and prints its log as text or as one JSON object per line.

Repeated lines of the Kafka client are suppressed: a deleted topic makes it log thousands of lines a second.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import typer

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.command import Target, find_app
from ackwise.plugin.process.watchdog import AT_EXIT, Watchdog, code_of

#: Seconds within which a repeated line is printed once.
WITHIN: Final = 10.0

#: Seconds within which one of all lines about an unavailable broker is printed: the client logs them by the hundred.
AWAY_WITHIN: Final = 60.0

#: The templates of those lines start with one of these.
_AWAY: Final = (
    "Unable connect to",
    "Unable to request metadata",
    "Unable to update metadata",
    "Failed fetch messages from",
    "Failed fetch offsets from",
    "Group Coordinator Request failed",
    "FindCoordinator Request failed",
    "Heartbeat send request failed",
    "Heartbeat session expired",
    "Heartbeat failed for group %s: coordinator",
    "Marking the coordinator dead",
    "Error sending",
    "LeaveGroup request failed",
    "Got error produce response",
    "Could not send",
)

_REMEMBERED: Final = 1000  # different lines; the oldest are forgotten first, and may then be printed again


@dataclass(slots=True)
class _Line:
    printed: float
    left_out: int = 0


class Repeats(logging.Filter):
    """A filter for repeated lines of the client: each passes once in `WITHIN` seconds, with the number of suppressed ones.

    All lines about an unavailable broker count as one line, once in `AWAY_WITHIN`. Lines of other loggers pass. Add it to a handler:
    a filter of a logger does not see the records of its children. `now` is a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__("aiokafka")
        self._now = now
        self._lines: OrderedDict[tuple[str, int, str], _Line] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if `record` is printed. The number of suppressed records before it is appended."""
        if not super().filter(record):
            return True
        now, message = self._now(), record.getMessage()
        is_away = str(record.msg).startswith(_AWAY)
        key, within = (("aiokafka", 0, ""), AWAY_WITHIN) if is_away else ((record.name, record.levelno, message), WITHIN)
        line = self._lines.pop(key, None)
        if line is not None and now < line.printed + within:
            line.left_out += 1
            self._lines[key] = line
            return False
        if line is not None and line.left_out:
            record.msg, record.args = f"{message} (left out since it was last printed: {line.left_out:,})", ()
        self._lines[key] = _Line(now)
        if len(self._lines) > _REMEMBERED:
            self._lines.popitem(last=False)
        return True


LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class JsonLines(logging.Formatter):
    """Formats a record as `{"time", "level", "logger", "event", "fields"}`; `fields` is empty for foreign loggers."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, with `traceback` if the record has one."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
            "fields": getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def print_log(level: LogLevel, form: LogFormat) -> None:
    """Print log records from `level` on to stderr. The Kafka client's are printed from warnings on, and thinned, unless debugging."""
    printing = logging.StreamHandler(sys.stderr)
    printing.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    printing.addFilter(Repeats())
    logging.basicConfig(level=level.upper(), handlers=[printing])
    # Never its debug level: it logs whole requests, answers and records there, with payloads and SASL passwords.
    client = {"debug": logging.INFO, "error": logging.ERROR}.get(level, logging.WARNING)
    logging.getLogger("aiokafka").setLevel(client)


LogLevelOption = Annotated[LogLevel, typer.Option(help="Lowest level that is logged to stderr.")]
LogFormatOption = Annotated[LogFormat, typer.Option(help="Format of the log: text, or one JSON object per line.")]

WorkersOption = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Number of worker processes; one that exits is restarted.")]
WatchOption = Annotated[
    int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Serve health, metrics and state on this port, as Watch does.")
]

#: Seconds after the drain until the process ends.
_EXIT_WITHIN: Final = 2.0

#: Exit code of an error that is printed as one sentence.
_SAID: Final = 2


def run(
    target: Target,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    workers: WorkersOption = 1,
    watch: WatchOption = None,
) -> None:
    """Run the handlers of an app until SIGINT or SIGTERM; then drain, commit and exit.

    The current folder is searched for the module first. A second signal cancels running handlers, the third kills the process.

    With --workers, a process that exits by itself is restarted after a back-off of 1 to 60 s. A signal drains all of them. SIGHUP
    restarts them one after the other, with new code.

    Exit code 0: drained and committed. 2: it can't start or can't continue. 128 + n: a second signal n ended it at once.
    A handler that raises SystemExit ends the worker with its code.
    """
    from ackwise.plugin.app import App

    print_log(log_level, log_format)
    app = find_app(target)
    if not isinstance(app, App):
        raise ConfigurationError(f"{target} is an app of Faust; run it with faust -A {target} worker")
    if workers > 1:
        code = _supervise(target, log_level, log_format, workers, app.watch_port if watch is None else watch)
        AT_EXIT.arm(_EXIT_WITHIN, code)  # the module may have started threads
        raise typer.Exit(code)
    try:
        app.run(watch=watch)
    except BaseException as error:
        AT_EXIT.arm(_EXIT_WITHIN, _SAID if isinstance(error, AckwiseError) else code_of(error))
        raise
    Watchdog().arm(_EXIT_WITHIN, 0)  # the interpreter waits for threads of stores and of the event log, which may hang


def _supervise(target: str, log_level: str, log_format: str, workers: int, port: int | None) -> int:
    """Keep `workers` worker processes running. Their watch ports are consecutive, from `port` on."""
    import asyncio

    from ackwise.plugin.process.supervisor import Supervisor

    command = [sys.executable, "-m", "ackwise.plugin.cli", "run", target, "--log-level", log_level, "--log-format", log_format]
    ports = range(workers) if port else [0] * workers  # 0 is any free one
    if port and port + workers > 65536:
        raise ConfigurationError(f"{workers} workers need consecutive ports from {port} on, and the last port is 65535; choose a lower one")
    options = [[] if port is None else ["--watch", str(port + each)] for each in ports]
    return asyncio.run(Supervisor([[*command, *each] for each in options]).run())
