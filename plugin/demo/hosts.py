"""Hosts of the demo: the command that runs the worker on each, and how many messages that has in flight."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.demo.scenario import MAX_BATCH
from ackwise.plugin.demo.shop import PARTITIONS

__all__ = ["HOSTS", "DemoHost", "find_host"]

#: Lanes: each partition of the source and of the retry topic. A partition belongs to one worker at a time, so what is
#: claimed and unfinished at one moment is bounded by them for any number of workers.
_LANES: Final = PARTITIONS * 2

#: Batches that a lane hands to an agent of Faust ahead of it: two at once, and a third while those are not full.
_AHEAD: Final = 3


@dataclass(frozen=True, slots=True)
class DemoHost:
    """One way to run the worker."""

    command: Sequence[str]  #: what `python -m` is given
    in_flight: int  #: messages that can be claimed and unfinished at one moment
    has_stock: bool  #: the same worker runs without Ackwise too


HOSTS: Final[Mapping[str, DemoHost]] = {
    "aiokafka": DemoHost(("ackwise.plugin.cli", "run", "ackwise.plugin.demo.worker:app"), MAX_BATCH * _LANES, has_stock=False),
    "faust": DemoHost(
        ("faust", "-A", "ackwise.plugin.faust.demo", "worker", "-l", "info", "--without-web"), _AHEAD * MAX_BATCH * _LANES, has_stock=True
    ),
}


def find_host(name: str) -> DemoHost:
    """The host of this name. Raises `ConfigurationError` if what it runs is not installed."""
    host = HOSTS[name]
    if importlib.util.find_spec(host.command[0].partition(".")[0]) is None:
        raise ConfigurationError(f"--host {name} runs {host.command[0]}, which is not installed: pip install 'ackwise[{name}]'")
    return host
