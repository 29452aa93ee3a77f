"""Ackwise: RocketMQ's consumption guarantees for Kafka consumers.

Names are loaded when they are first asked for, so that `import ackwise.spark` on a cluster needs no Kafka client.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackwise.middleware.errors import AckwiseError as AckwiseError
    from ackwise.middleware.errors import ConfigurationError as ConfigurationError

__all__ = ["AckwiseError", "ConfigurationError"]

_HOMES = {
    "AckwiseError": "ackwise.middleware.errors",
    "ConfigurationError": "ackwise.middleware.errors",
}
"""Where each public name lives. A new name is added here, in `__all__` and in the block for type checkers; a test compares the three."""


def __getattr__(name: str) -> object:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'ackwise' has no attribute {name!r}; its names are {', '.join(__all__)}") from None
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # asked for once only
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
