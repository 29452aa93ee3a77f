"""The arguments and options of `reconcile` and `why`, each a type for a signature, and the configuration that they give."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Final

import typer

from ackwise.middleware.duration import parse_duration
from ackwise.spark.commands.times import begin_of, time_of
from ackwise.spark.config import ReconcileConfig

__all__ = [
    "AsOf",
    "Brokers",
    "CheckCluster",
    "Claims",
    "Computed",
    "Conf",
    "DriverMemory",
    "EngineName",
    "EventFolders",
    "ClientConfig",
    "Every",
    "FailFast",
    "Follow",
    "Format",
    "Grace",
    "Json",
    "Lateness",
    "Lease",
    "Master",
    "Metrics",
    "Out",
    "PlanProvisional",
    "PrintAs",
    "Produced",
    "Retention",
    "Since",
    "Strict",
    "VerifySample",
    "Topic",
    "Webhook",
    "WriterTimeout",
    "config_of",
]

#: As many messages as fit into the driver with all their events.
_MOST_SAMPLED: Final = 100_000


class Format(enum.StrEnum):
    """The form in which `reconcile` prints; the files of a run are the same."""

    TABLES = "tables"
    JSON = "json"
    HTML = "html"


class EngineName(enum.StrEnum):
    """The engine that judges."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


#: The groups of options in `--help`.
_JUDGING: Final = "How it is judged"
_OUTPUT: Final = "Output"
_FOLLOW: Final = "With --follow"
_SPARK: Final = "Engine and Spark"

# What is read, and where the result goes. We check folders ourselves: typer's message for an unreadable one is hard to read.
EventFolders = Annotated[
    list[Path],
    typer.Argument(metavar="EVENTS", help="The folders that [bold]Events[/bold] was given.", show_default=False, readable=False),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for report.html, summary.json and the tables. Default: a new one in EVENTS/runs.", rich_help_panel=_OUTPUT),
]
Produced = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Parquet or JSON with the records that others than Ackwise produced: finds those that were lost before a worker got them.",
        rich_help_panel=_JUDGING,
    ),
]
Claims = Annotated[
    str | None,
    typer.Option(
        metavar="URL|MODULE:APP", help="Compare with the claims in this store, or in the store of this app.", rich_help_panel=_JUDGING
    ),
]
Brokers = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|MODULE:APP",
        help="Read the last commits from these brokers, or those of this app, to detect missing event files.",
        rich_help_panel=_JUDGING,
    ),
]
PrintAs = Annotated[
    Format, typer.Option("--format", help="Print tables, summary.json (json), or the page (html).", rich_help_panel=_OUTPUT)
]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json.", rich_help_panel=_OUTPUT)]

# With --follow.
Follow = Annotated[
    bool, typer.Option("--follow", help="Audit again and again until Ctrl-C, and print what is new.", rich_help_panel=_FOLLOW)
]
Topic = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT/TOPIC",
        help="Before each audit, fetch new events from this topic into the first folder, as `ackwise collect` does. Needs Spark.",
        rich_help_panel=_FOLLOW,
    ),
]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="For --topic: a properties file as Kafka's tools take it, with security.protocol and the like.",
        rich_help_panel=_FOLLOW,
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Time from the start of one audit to the start of the next. Default: 1m.",
        show_default=False,
        rich_help_panel=_FOLLOW,
    ),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Exit with 1 at the first alarm.", rich_help_panel=_FOLLOW)]
Webhook = Annotated[
    str | None,
    typer.Option(
        metavar="URL|FILE",
        help="POST each alarm to this URL as JSON. If the URL is a secret, give a file that holds it.",
        rich_help_panel=_FOLLOW,
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write Prometheus metrics to this file (for the node exporter: *.prom).", rich_help_panel=_FOLLOW),
]

# How it is judged.
AsOf = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Judge as of this ISO 8601 time. Default: that of the newest events.", rich_help_panel=_JUDGING),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME|DURATION",
        help="Judge only what happened since then, and what was open then. A duration counts back from --as-of, or from now.",
        rich_help_panel=_JUDGING,
    ),
]
Grace = Annotated[
    str,
    typer.Option(metavar="DURATION", help="How overdue a retry or a lease must be to count as lost or stuck.", rich_help_panel=_JUDGING),
]
Lateness = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="How late event files may arrive. Younger anomalies are marked PROVISIONAL.", rich_help_panel=_JUDGING
    ),
]
WriterTimeout = Annotated[
    str,
    typer.Option(metavar="DURATION", help="A worker without an event for longer than this counts as dead.", rich_help_panel=_JUDGING),
]
Lease = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="The lease of Dedup. Default: as the workers recorded it.", rich_help_panel=_JUDGING),
]
Retention = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long Dedup remembers a key. Default: as the workers recorded it.", rich_help_panel=_JUDGING),
]
VerifySample = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=_MOST_SAMPLED,
        help="Judge N messages a second time with separate code. Any difference fails the run.",
        rich_help_panel=_JUDGING,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 1 also for messages that ran again or may have, that no event says were produced, that a broadcasting "
        "instance dropped, whose key is that of a dead letter, or that are parked in an outbox.",
        rich_help_panel=_OUTPUT,
    ),
]
PlanProvisional = Annotated[
    bool,
    typer.Option(
        "--plan-provisional",
        help="Put anomalies that later events may still explain into the repair plan, too.",
        rich_help_panel=_OUTPUT,
    ),
]

# What judges, and where Spark runs.
Computed = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Judge in this process (local) or on Spark (spark). auto: local for few events or without PySpark.",
        rich_help_panel=_SPARK,
    ),
]
CheckCluster = Annotated[
    bool,
    typer.Option(
        "--check-cluster",
        help="Judge nothing: check that Spark's executors have what they need, and name what is missing.",
        rich_help_panel=_SPARK,
    ),
]
Master = Annotated[str, typer.Option(help="The Spark master.", rich_help_panel=_SPARK)]
DriverMemory = Annotated[str, typer.Option(help="The heap of Spark's driver.", rich_help_panel=_SPARK)]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of Spark, such as spark.executor.memory=4g; repeatable.", rich_help_panel=_SPARK),
]


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
