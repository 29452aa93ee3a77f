"""What a contender is told, and how it measures itself: from the first message handled to the last."""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_QUEUED: Final = Path("/proc/self/schedstat")


@dataclass(frozen=True, slots=True)
class Task:
    """Handle `messages` messages of `topic`, in batches of up to `batch`, as a new member of `group`."""

    brokers: str
    topic: str
    group: str
    messages: int
    batch: int
    folder: str
    variant: str
    profile: str | None  #: where the costs of what is measured go, function by function


def read_task() -> Task:
    """The task on the command line of this process."""
    parser = argparse.ArgumentParser(description="One contender of benchmarks.consumers, which starts it.")
    for name in ("brokers", "topic", "group", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("messages", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--variant", default="")
    parser.add_argument("--profile")
    return Task(**vars(parser.parse_args()))


class _Look(NamedTuple):
    """One look at the clocks, in seconds."""

    wall: float
    cpu: float
    queued: float
    """How long this thread was ready to run while others had the cores; 0 where the system does not say."""


def _look() -> _Look:
    try:
        queued = int(_QUEUED.read_text().split()[1]) / 1e9
    except OSError:
        queued = 0.0
    return _Look(time.perf_counter(), time.process_time(), queued)


class Meter:
    """Counts messages; the clock starts when the first batch is handed over, and so that batch does not count.

    A profile is of the CPU time of the thread that counts: the event loop's.
    """

    def __init__(self, task: Task) -> None:
        self._messages = task.messages
        self._path = task.profile
        self._profile = None if self._path is None else cProfile.Profile(time.thread_time)
        self._seen = 0
        self._first = 0
        self._started = self._ended = _Look(0.0, 0.0, 0.0)

    def count(self, messages: int) -> bool:
        """So many more are handled; returns whether these were the last."""
        if self._seen == 0:
            self._first = messages
            self._started = _look()
            if self._profile is not None:
                self._profile.enable()
        self._seen += messages
        if self._seen < self._messages:
            return False
        self._ended = _look()
        if self._profile is not None and self._path is not None:
            self._profile.disable()
            self._profile.dump_stats(self._path)
        return True

    @property
    def measured(self) -> int:
        """How many messages lie between the two looks at the clock."""
        return self._seen - self._first

    def report(self, phases: Mapping[str, float] | None = None) -> None:
        """One line of JSON: microseconds per message by each clock, and of each phase."""
        share = 1e6 / self.measured
        spent = {name: (ended - started) * share for name, started, ended in zip(_Look._fields, self._started, self._ended, strict=True)}
        said = {**spent, "phases": {phase: seconds * share for phase, seconds in (phases or {}).items()}}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    def report_and_die(self) -> None:
        """For those whose way to stop is long and is not measured."""
        self.report()
        os._exit(0)
