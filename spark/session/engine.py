"""`Engine`: where Spark runs and how it is configured, from the command line. Imports no Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import ConfigurationError

__all__ = ["HEAP", "LOCAL", "Engine", "engine_of", "is_submitted"]

#: The default master.
LOCAL: Final = "local[*]"
#: The default heap of the driver.
HEAP: Final = "2g"

_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Engine:
    """The settings of a Spark session."""

    master: str
    driver_memory: str
    conf: Mapping[str, str]
    """Spark's own configuration; wins over ours."""


def engine_of(master: str, driver_memory: str, conf: Iterable[str]) -> Engine:
    """Return the engine of these options; each of `conf` is `KEY=VALUE`. Raises `ConfigurationError`, which repeats no value."""
    if _MEMORY.fullmatch(driver_memory) is None:
        raise ConfigurationError(f"--driver-memory is {driver_memory!r}, which is no amount of memory; write it as 512m or 2g")
    if is_submitted() and (master, driver_memory) != (LOCAL, HEAP):
        raise ConfigurationError("spark-submit has begun Spark; give --master and --driver-memory to it, before the name of the script")
    found = {}
    for setting in conf:
        name, separator, value = setting.partition("=")
        if not separator or not name.startswith("spark."):
            raise ConfigurationError(f"--conf names {name!r}; write it as KEY=VALUE, such as spark.executor.memory=4g")
        found[name] = value
    return Engine(master, driver_memory, found)


def is_submitted() -> bool:
    """Whether `spark-submit` runs this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
