"""`ackwise why`: the life of one message, from the events alone and without Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout
from ackwise.spark.commands import options
from ackwise.spark.commands.interrupting import interruptible
from ackwise.spark.config import ReconcileConfig

if TYPE_CHECKING:
    from ackwise.spark.why.answer import Answer

__all__ = ["why"]

_SLOW = 1.0  # seconds; progress is shown after that


def why(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="Its key or message id, or topic/partition/offset.", show_default=False)
    ],
    events: options.EventFolders,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="The namespace of Dedup, for a key. Default: what the workers wrote.")
    ] = None,
    brokers: options.Brokers = None,
    as_of: options.AsOf = None,
    grace: options.Grace = "1m",
    lateness: options.Lateness = "0s",
    writer_timeout: options.WriterTimeout = "10m",
    lease: options.Lease = None,
    retention: options.Retention = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show the story of one message: each attempt, by which worker and when, the verdict with its reason, and what to do.

    Name the message by topic/partition/offset of its record or of a copy on the retry topic, by its key for deduplication, or by the
    id that its producer or outbox gave it. Other records of the same key are listed. The verdict is that of [bold]reconcile[/bold].

    Exit code 0: nothing is wrong. 1: an anomaly. 2: no event is about it, or it could not run. 3: events are missing that would tell.
    """
    config = options.config_of(as_of=as_of, grace=grace, lateness=lateness, writer_timeout=writer_timeout, lease=lease, retention=retention)
    with interruptible():
        answer = _ask(message, events, config, namespace, brokers)
    from ackwise.spark.why.output import show, to_json

    if as_json:
        typer.echo(to_json(answer))
    else:
        show(answer, to_stdout())
    raise typer.Exit(int(answer.exit_code))


def _ask(message: str, roots: Sequence[Path], config: ReconcileConfig, namespace: str | None, brokers: str | None) -> Answer:
    try:
        from ackwise.spark.commands.lastcommits import commits_at
        from ackwise.spark.why.asking import ask
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"why needs {error.name}, which is not installed: pip install 'ackwise[events]'") from error
    # A log that can't be rolled is read where it is, so a warning for each is left out.
    logging.getLogger("ackwise").addHandler(logging.NullHandler())
    console, started = to_stderr(), time.monotonic()

    def progress(step: str) -> None:
        if (spent := time.monotonic() - started) > _SLOW:
            console.print(f"[dim]{spent:5.1f} s  {step}[/]")

    last_commits = [] if brokers is None else commits_at(brokers, roots)
    return ask(message, roots, config, namespace=namespace, last_commits=last_commits, progress=progress)
