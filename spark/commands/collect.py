"""`ackwise collect`: fetches what `ackwise publish` sent to a Kafka topic into a folder of events."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.command import wait_for
from ackwise.plugin.cli.console import to_stderr, to_stdout

if TYPE_CHECKING:
    from ackwise.spark.topic.landing import Landing

__all__ = ["Source", "collect"]

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

    It reads to the end of the topic and exits; the next run continues there. Records that come twice are one event; a record that is
    not an event is counted and named.

    Exit code 0: the folder has what the topic had. 2: it could not be done, or not whole.
    """
    source = Source(topic, brokers, client_config)
    try:
        landed = _collect(source, events, driver_memory)
    except OSError as error:
        raise AckwiseError(f"{error.filename or events}: {error.strerror or error}; run it again") from error
    invalid = f", and {landed.invalid:,} records that are no events" if landed.invalid else ""
    to_stdout().print(f"{landed.count:,} events from {escape(topic)}{invalid}: {escape(str(events))}", soft_wrap=True)


@dataclass(frozen=True)
class Source:
    """A topic that events are published to. Raises `ConfigurationError` if no topic can have the name."""

    topic: str
    brokers: str
    client_config: Path | None = None

    def __post_init__(self) -> None:
        if _LEGAL_NAME.fullmatch(self.topic) is None or set(self.topic) == {"."}:
            raise ConfigurationError(f"{self.topic!r} can't be the name of a topic")

    @classmethod
    def of(cls, text: str, client_config: Path | None) -> Source:
        """Return what is written as `HOST:PORT/TOPIC`. Raises `ConfigurationError`."""
        brokers, slash, topic = text.rpartition("/")
        if not slash:
            raise ConfigurationError(f"--topic is {text!r}; write it as HOST:PORT/TOPIC, such as localhost:9092/{text}")
        return cls(topic, brokers, client_config)

    def check(self, root: Path) -> None:
        """Raise `AckwiseError` or `OSError` if nothing can be collected from there into this folder, before Spark is started."""
        try:
            from ackwise.plugin.settings.connecting import require_broker
            from ackwise.spark.topic.reader import require_same_brokers
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"collect needs {error.name}, which is not installed: pip install 'ackwise[spark]'") from error
        self._client()
        wait_for(require_broker(self.brokers))
        require_same_brokers(root, self.topic, self.brokers)

    def land(self, spark: Any, root: Path, progress: Callable[[str], None]) -> Landing:
        """Land what is new below `root`. Raises `AckwiseError` and `OSError`."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
        from pyspark.errors import PySparkException

        from ackwise.spark.session.jars import add_kafka_connector
        from ackwise.spark.session.spark import explain
        from ackwise.spark.topic.reader import collect_topic

        try:
            add_kafka_connector(spark, progress)
            progress(f"reading {self.topic}")
            return collect_topic(spark, self.topic, root, brokers=self.brokers, client=self._client(), progress=progress)
        except (PySparkException, Py4JError) as error:
            raise AckwiseError(f"Spark failed: {explain(error)}") from error

    def _client(self) -> Mapping[str, str]:
        from ackwise.spark.topic.reader import read_client_config

        return {} if self.client_config is None else read_client_config(self.client_config)


def _collect(source: Source, root: Path, driver_memory: str) -> Landing:
    started, console = time.monotonic(), to_stderr()

    def progress(step: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s  {step}[/]")

    source.check(root)
    from ackwise.spark.session.spark import local_session

    progress("starting Spark")
    with local_session(driver_memory=driver_memory) as spark:
        return source.land(spark, root, progress)
