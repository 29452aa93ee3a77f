"""The jars of a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ackwise.plugin.local.ivyjars import Jars, fetch_jars
from ackwise.plugin.local.java import JavaHome

__all__ = ["KAFKA_VERSION", "kafka_jars"]

KAFKA_VERSION: Final = "4.2.0"

#: Kafka brings no binding for its logging interface; slf4j-simple makes it say why it does not start.
_JARS: Final = Jars(
    title=f"Apache Kafka {KAFKA_VERSION}",
    folder=f"kafka-{KAFKA_VERSION}",
    artifacts=(f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
    size="44 MB",
)


def kafka_jars(java: JavaHome, say: Callable[[str], None]) -> Path:
    """The folder that holds the broker's jars; downloads them into the user's cache if they are not there yet.

    `say` is told before the download starts. Raises `ConfigurationError` if PySpark is not installed or the cache
    can't be written, and `Unavailable` if the download fails.
    """
    return fetch_jars(java, _JARS, say)
