"""The reader of a Kafka topic of events: each run of Structured Streaming goes on where the last one ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.spark.session.spark import explain
from ackwise.spark.topic.landing import Landing

__all__ = ["collect_topic", "read_client_config", "require_same_brokers"]

#: Records of one batch: what is landed at a time, and read again after a crash.
_BATCH: Final = 500_000
_ANSWER_TIMEOUT_MS: Final = 20_000


def collect_topic(
    spark: SparkSession, topic: str, root: Path, *, brokers: str, client: Mapping[str, str], progress: Callable[[str], None]
) -> Landing:
    """Land what the topic has beyond what was landed below `root` before, and return it.

    `client` are properties of Kafka's own client, such as `security.protocol`. Raises `ConfigurationError` if the topic is missing
    or lost records before they were landed. Raises `Unavailable` if the brokers do not answer, `OSError`, and what Spark raises.
    """
    place = root / "collected" / topic
    landing = Landing(root, topic, progress)
    failed: list[OSError] = []

    def land(batch: DataFrame, number: int) -> None:
        try:
            landing.land(batch, number)
        except OSError as error:  # through Java only its text would come back
            failed.append(error)
            raise

    options = {f"kafka.{name}": value for name, value in client.items()} | {
        "kafka.bootstrap.servers": brokers,
        "kafka.default.api.timeout.ms": str(_ANSWER_TIMEOUT_MS),
        "kafka.request.timeout.ms": str(_ANSWER_TIMEOUT_MS // 2),
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(_BATCH),
    }
    records = spark.readStream.format("kafka").options(**options).load()
    started = records.writeStream.foreachBatch(land).option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    query = started.start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        if failed:
            raise failed[0] from error
        raise _explained(error, topic, brokers, place) from error
    finally:
        query.stop()
    return landing


def require_same_brokers(root: Path, topic: str, brokers: str) -> None:
    """Raise `ConfigurationError` if `topic` was collected from other brokers: their offsets mean other records. Raises `OSError`."""
    place = root / "collected" / topic
    place.mkdir(parents=True, exist_ok=True)
    note = place / "brokers"
    if note.exists() and (before := note.read_text(encoding="utf-8").strip()) != brokers:
        raise ConfigurationError(
            f"{topic} was collected into {root} from {before}, and not from {brokers}; give that, or another folder, or, if it is the "
            f"same Kafka by another name, delete {note}"
        )
    note.write_text(f"{brokers}\n", encoding="utf-8")


def read_client_config(path: Path) -> dict[str, str]:
    """The properties of a file as Kafka's own tools take it: `name=value` in each line. Raises `ConfigurationError`, without a value."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read ({error.strerror}); give --client-config a file of client properties") from error
    found = {}
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith(("#", "!")):
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise ConfigurationError(f"line {number} of {path} has no '='; write name=value, such as security.protocol=SASL_SSL")
        found[name.strip()] = value.strip()
    return found


def _explained(error: PySparkException, topic: str, brokers: str, place: Path) -> Exception:
    text = str(error)
    if "UnknownTopicOrPartition" in text or "does not host this topic" in text:
        return ConfigurationError(f"there is no topic {topic!r} at {brokers}; `ackwise publish` sends events to one that is there")
    if "DATA_LOSS" in text or "failOnDataLoss" in text:
        return ConfigurationError(
            f"{topic} has lost records before they were collected, or was recreated: give it more retention, or collect more often; "
            f"to go on with what it has, delete {place}. What is missing of a writer is then UNKNOWN_EXPORT_GAP"
        )
    return Unavailable(f"{topic} can't be read from {brokers}: {explain(error)}")
