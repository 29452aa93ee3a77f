"""The arguments and options of `reconcile` and `why`, each a type for a signature, and the configuration that they give."""

from __future__ import annotations

import enum
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from ackwise.middleware.duration import parse_duration
from ackwise.spark.commands.times import begin_of, time_of
from ackwise.spark.config import ReconcileConfig

__all__ = [
    "AsOf", "Brokers", "CheckCluster", "Claims", "ClientConfig", "Computed", "Conf", "DriverMemory", "EngineName", "EventFolders",
    "Every", "FailFast", "Follow", "Format", "Grace", "Json", "Lateness", "Lease", "Master", "Metrics", "Out", "PlanProvisional",
    "PrintAs", "Produced", "Retention", "Since", "Strict", "Topic", "VerdictRows", "Verdicts",
    "VerifySample", "Webhook", "WriterTimeout", "config_of",
]  # fmt: skip

#: As many messages as fit into the driver with all their events.
_MOST_SAMPLED: Final = 100_000


class Format(enum.StrEnum):
    """The form in which `reconcile` prints; the files of a run are the same."""

    TABLES = "tables"
    JSON = "json"
    HTML = "html"


class Verdicts(enum.StrEnum):
    """The messages that the table of verdicts has a row of."""

    EXCEPTIONS = "exceptions"
    ROWS = "rows"


class EngineName(enum.StrEnum):
    """The engine that judges."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


# The groups of options in `--help`.
_of_judging = partial(typer.Option, rich_help_panel="How it is judged")
_of_output = partial(typer.Option, rich_help_panel="Output")
_of_follow = partial(typer.Option, rich_help_panel="With --follow")
_of_spark = partial(typer.Option, rich_help_panel="Engine and Spark")

# What is read, and where the result goes. We check folders ourselves: typer's message for an unreadable one is hard to read.
EventFolders = Annotated[
    list[Path], typer.Argument(metavar="EVENTS", help="The folders that [bold]Events[/bold] was given.", show_default=False, readable=False)
]
Out = Annotated[Path | None, _of_output(help="Folder for report.html, summary.json and the tables. Default: a new one in EVENTS/runs.")]
Produced = Annotated[
    Path | None,
    _of_judging(
        metavar="PATH",
        help="Parquet or JSON with the records that others than Ackwise produced: finds those that were lost before a worker got them.",
    ),
]
Claims = Annotated[
    str | None, _of_judging(metavar="URL|MODULE:APP", help="Compare with the claims in this store, or in the store of this app.")
]
Brokers = Annotated[
    str | None,
    _of_judging(
        metavar="HOST:PORT|MODULE:APP",
        help="Read the last commits from these brokers, or those of this app, to detect missing event files.",
    ),
]
PrintAs = Annotated[Format, _of_output("--format", help="Print tables, summary.json (json), or the page (html).")]
Json = Annotated[bool, _of_output("--json", help="Short for --format json.")]

# With --follow.
Follow = Annotated[bool, _of_follow("--follow", help="Audit again and again until Ctrl-C, and print what is new.")]
Topic = Annotated[
    str | None,
    _of_follow(
        metavar="HOST:PORT/TOPIC",
        help="Before each audit, fetch new events from this topic into the first folder, as `ackwise collect` does. Needs Spark.",
    ),
]
ClientConfig = Annotated[
    Path | None,
    _of_follow(metavar="FILE", help="For --topic: a properties file as Kafka's tools take it, with security.protocol and the like."),
]
Every = Annotated[
    str | None,
    _of_follow(metavar="DURATION", help="Time from the start of one audit to the start of the next. Default: 1m.", show_default=False),
]
FailFast = Annotated[bool, _of_follow("--fail-fast", help="Exit with 1 at the first alarm.")]
Webhook = Annotated[
    str | None,
    _of_follow(metavar="URL|FILE", help="POST each alarm to this URL as JSON. If the URL is a secret, give a file that holds it."),
]
Metrics = Annotated[Path | None, _of_follow(metavar="FILE", help="Write Prometheus metrics to this file (for the node exporter: *.prom).")]

# How it is judged.
AsOf = Annotated[str | None, _of_judging(metavar="TIME", help="Judge as of this ISO 8601 time. Default: that of the newest events.")]
Since = Annotated[
    str | None,
    _of_judging(
        metavar="TIME|DURATION",
        help="Judge only what happened since then, and what was open then. A duration counts back from --as-of, or from now.",
    ),
]
Grace = Annotated[str, _of_judging(metavar="DURATION", help="How overdue a retry or a lease must be to count as lost or stuck.")]
Lateness = Annotated[
    str, _of_judging(metavar="DURATION", help="How late event files may arrive. Younger anomalies are marked PROVISIONAL.")
]
WriterTimeout = Annotated[str, _of_judging(metavar="DURATION", help="A worker without an event for longer than this counts as dead.")]
Lease = Annotated[str | None, _of_judging(metavar="DURATION", help="The lease of Dedup. Default: as the workers recorded it.")]
Retention = Annotated[
    str | None, _of_judging(metavar="DURATION", help="How long Dedup remembers a key. Default: as the workers recorded it.")
]
VerifySample = Annotated[
    int,
    _of_judging(
        metavar="N", min=0, max=_MOST_SAMPLED, help="Judge N messages a second time with separate code. Any difference fails the run."
    ),
]
Strict = Annotated[
    bool,
    _of_output(
        "--strict",
        help="Exit with 1 also for messages that ran again or may have, that no event says were produced, that a broadcasting "
        "instance dropped, whose key is that of a dead letter, or that are parked in an outbox.",
    ),
]
PlanProvisional = Annotated[
    bool, _of_output("--plan-provisional", help="Put anomalies that later events may still explain into the repair plan, too.")
]
VerdictRows = Annotated[
    Verdicts,
    _of_output(
        "--verdicts",
        help="rows: write a row to verdicts/ for every message. exceptions: not for those that ran once, which ranges/ has.",
    ),
]

# What judges, and where Spark runs.
Computed = Annotated[
    EngineName,
    _of_spark("--engine", help="Judge in this process (local) or on Spark (spark). auto: local, if the disk of --out has room for it."),
]
CheckCluster = Annotated[
    bool, _of_spark("--check-cluster", help="Judge nothing: check that Spark's executors have what they need, and name what is missing.")
]
Master = Annotated[str, _of_spark(help="The Spark master.")]
DriverMemory = Annotated[str, _of_spark(help="The heap of Spark's driver.")]
Conf = Annotated[list[str] | None, _of_spark(metavar="KEY=VALUE", help="A setting of Spark, such as spark.executor.memory=4g; repeatable.")]


def config_of(
    *,
    as_of: str | None,
    since: str | None = None,
    grace: str,
    lateness: str,
    writer_timeout: str,
    lease: str | None,
    retention: str | None,
) -> ReconcileConfig:
    """Return the configuration that the options for judging give. Raises `ConfigurationError`."""
    return ReconcileConfig(
        as_of=None if as_of is None else time_of(as_of),
        since=None if since is None else begin_of(since, as_of),
        grace=parse_duration(grace, what="--grace"),
        lateness=parse_duration(lateness, what="--lateness"),
        writer_timeout=parse_duration(writer_timeout, what="--writer-timeout"),
        lease=None if lease is None else parse_duration(lease, what="--lease"),
        retention=None if retention is None else parse_duration(retention, what="--retention"),
    )
