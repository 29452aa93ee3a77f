"""`ackwise collect`: fetches what `ackwise publish` sent to a Kafka topic into a folder of events."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout
from ackwise.plugin.cli.waiting import wait_for

if TYPE_CHECKING:
    from ackwise.spark.topic.landing import Landing

__all__ = ["collect"]

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def collect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that events are published to.", show_default=False)],
    events: Annotated[Path, typer.Argument(metavar="EVENTS", help="The folder that they go to.", show_default=False, readable=False)],
    brokers: Annotated[str, typer.Option(metavar="HOST:PORT", help="Several with commas between.")] = "localhost:9092",
    client_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Properties of Kafka's own client, such as security.protocol, as Kafka's tools take them."),
    ] = None,
    driver_memory: Annotated[str, typer.Option(help="Spark's heap.")] = "2g",
) -> None:
    """Fetch published events from a Kafka topic into a folder, for `ackwise reconcile` and `ackwise why` to read.

    It reads to the end of the topic and leaves; the next run goes on from there. Records that come twice are one event, and
    a record that is no event is counted and named.

    Exit code 0: the folder has what the topic had. 2: it could not be done, or not whole.
    """
    if _LEGAL_NAME.fullmatch(topic) is None or set(topic) == {"."}:
        raise ConfigurationError(f"{topic!r} can't be the name of a topic")
    try:
        landed = _collect(topic, events, brokers, client_config, driver_memory)
    except OSError as error:
        raise AckwiseError(f"{error.filename or events}: {error.strerror or error}; run it again") from error
    invalid = f", and {landed.invalid:,} records that are no events" if landed.invalid else ""
    to_stdout().print(f"{landed.count:,} events from {escape(topic)}{invalid}: {escape(str(events))}", soft_wrap=True)


def _collect(topic: str, root: Path, brokers: str, client_config: Path | None, driver_memory: str) -> Landing:
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
        from pyspark.errors import PySparkException

        from ackwise.plugin.settings.addresses import require_broker
        from ackwise.spark.session.jars import add_kafka_connector
        from ackwise.spark.session.spark import explain, local_session
        from ackwise.spark.topic.reader import collect_topic, read_client_config, require_same_brokers
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"collect needs {error.name}, which is not installed: pip install 'ackwise[spark]'") from error
    started, console = time.monotonic(), to_stderr()

    def progress(step: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s  {step}[/]")

    client: Mapping[str, str] = {} if client_config is None else read_client_config(client_config)
    wait_for(require_broker(brokers))
    require_same_brokers(root, topic, brokers)
    progress("starting Spark")
    try:
        with local_session(0, driver_memory=driver_memory) as spark:
            add_kafka_connector(spark, progress)
            progress(f"reading {topic}")
            return collect_topic(spark, topic, root, brokers=brokers, client=client, progress=progress)
    except (PySparkException, Py4JError) as error:
        raise AckwiseError(f"Spark failed: {explain(error)}; run it again") from error
