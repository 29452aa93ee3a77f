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


# What is read, and where the result goes. We check folders ourselves: typer's message for an unreadable one is hard to read.
EventFolders = Annotated[
    list[Path],
    typer.Argument(metavar="EVENTS", help="The folders that [bold]Events[/bold] was given.", show_default=False, readable=False),
]
Out = Annotated[Path | None, typer.Option(help="Where report.html, summary.json and the tables go. Default: runs/ in the first folder.")]
Produced = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="What was produced by others than Ackwise, as Parquet or JSON: says what was lost on the way, or never sent."
    ),
]
Claims = Annotated[
    str | None,
    typer.Option(metavar="URL|MODULE:APP", help="Compare with the claims in a store: its URL, or the app that uses it."),
]
Brokers = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|MODULE:APP",
        help="Ask there, or where the app says, for the last commits: they tell whether the last events of each worker are here.",
    ),
]
PrintAs = Annotated[Format, typer.Option("--format", help="What is printed: tables, summary.json, or the page.")]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]

# With --follow.
Follow = Annotated[bool, typer.Option("--follow", help="Audit again and again until Ctrl-C, and print what is new.")]
Topic = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT/TOPIC",
        help="With --follow: first fetch from there into the first folder what is new, as `ackwise collect` does. Spark judges then.",
    ),
]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --topic: properties of Kafka's own client, such as security.protocol, as Kafka's tools take them."
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="With --follow: from the start of one update to that of the next. Default: 1m.", show_default=False
    ),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="With --follow: exit with 1 at the first alarm.")]
Webhook = Annotated[
    str | None,
    typer.Option(metavar="URL|FILE", help="With --follow: POST each alarm there as JSON. A file has the URL in it, if that is a secret."),
]
Metrics = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --follow: write metrics there for Prometheus, as its node exporter takes them: audit.prom."),
]

# How it is judged.
AsOf = Annotated[str | None, typer.Option(metavar="TIME", help="Judge as of this ISO 8601 time. Default: what the events tell.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME|DURATION",
        help="Judge only what has happened since, and what was open then; a duration is counted back from --as-of, or from now.",
    ),
]
Grace = Annotated[str, typer.Option(metavar="DURATION", help="How late a retry or a lease may be before it counts as lost or stuck.")]
Lateness = Annotated[
    str, typer.Option(metavar="DURATION", help="How late events may come to the folders; anomalies that are younger are provisional.")
]
WriterTimeout = Annotated[str, typer.Option(metavar="DURATION", help="A writer that is silent for longer is dead.")]
Lease = Annotated[str | None, typer.Option(metavar="DURATION", help="The lease of Dedup. Default: what the workers wrote.")]
Retention = Annotated[str | None, typer.Option(metavar="DURATION", help="How long Dedup remembers a key. Default: what the workers wrote.")]
VerifySample = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=_MOST_SAMPLED, help="Judge N messages once more, by other means; a difference fails the run."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 1 also if messages were run again, or may have been, if nobody produced them, if an "
        "instance that broadcasts dropped them, if their key is that of a dead letter, or if they are parked in an outbox.",
    ),
]
PlanProvisional = Annotated[
    bool, typer.Option("--plan-provisional", help="Put anomalies that events may still mend into the repair plan, too.")
]

# What judges, and where Spark runs.
Computed = Annotated[
    EngineName,
    typer.Option("--engine", help="What judges: this process (local), Spark, or local for few events and where PySpark is not installed."),
]
CheckCluster = Annotated[
    bool,
    typer.Option("--check-cluster", help="Judge nothing: check that Spark's executors have what they need, and name what is missing."),
]
Master = Annotated[str, typer.Option(help="The Spark master.")]
DriverMemory = Annotated[str, typer.Option(help="The driver's heap.")]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Configuration of Spark, such as spark.executor.memory=4g; repeatable."),
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
