"""The jars that Spark needs beyond its own, fetched once per user and added to a session that may be running already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark import __version__ as PYSPARK
from pyspark.sql import SparkSession

from ackwise.plugin.local.java import Jars, NotInRepository, fetch_jars, find_java

__all__ = ["add_kafka_connector"]

_KAFKA: Final = Jars(
    title=f"Spark's Kafka connector {PYSPARK}",
    folder=f"spark-kafka-{PYSPARK}",
    artifacts=(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{PYSPARK}",),
    size="30 MB",
)
#: The connector of the Spark before, in place of one that the repository has not: run with PySpark 4.2 and 4.3. Its jars are
#: named one by one, since a repository may lack what they ask for, too.
_KAFKA_OF_BEFORE: Final = Jars(
    title="Spark's Kafka connector 4.2.0",
    folder=_KAFKA.folder,
    artifacts=(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    size="10 MB",
    transitive=False,
)


def add_kafka_connector(spark: SparkSession, progress: Callable[[str], None]) -> None:
    """Let `spark` read Kafka. Raises `Unavailable` or `ConfigurationError` if the connector can't be had."""
    java = find_java()
    try:
        folder = fetch_jars(java, _KAFKA, progress)
    except NotInRepository:
        folder = fetch_jars(java, _KAFKA_OF_BEFORE, progress)
    _add(spark, folder)


def _add(spark: SparkSession, folder: Path) -> None:
    for jar in sorted(folder.glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
