"""The audit: the command `ackwise reconcile`, and the same as DataFrames of a Spark session.

Names are loaded when they are first asked for, so that the commands start without PySpark.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackwise.spark.library import ReconcileConfig as ReconcileConfig
    from ackwise.spark.library import accounts as accounts
    from ackwise.spark.library import claims as claims
    from ackwise.spark.library import read_events as read_events
    from ackwise.spark.library import verdicts as verdicts

__all__ = ["ReconcileConfig", "accounts", "claims", "read_events", "verdicts"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ackwise.spark' has no attribute {name!r}; its names are {', '.join(__all__)}")
    value: object = getattr(importlib.import_module("ackwise.spark.library"), name)
    globals()[name] = value  # asked for once only
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
