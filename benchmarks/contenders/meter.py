"""What a contender is told, and how it measures itself: from the first message handled to the last."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Meter", "Task", "read_task"]


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


def read_task() -> Task:
    """The task on the command line of this process."""
    parser = argparse.ArgumentParser(description="One contender of benchmarks.consumers, which starts it.")
    for name in ("brokers", "topic", "group", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("messages", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--variant", default="")
    return Task(**vars(parser.parse_args()))


class Meter:
    """Counts messages; the clock starts when the first batch is handed over, and so that batch does not count."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._seen = 0
        self._first = 0
        self._started = self._started_cpu = self._wall = self._cpu = 0.0

    def count(self, messages: int) -> bool:
        """So many more are handled; answers whether these were the last."""
        if self._seen == 0:
            self._first = messages
            self._started, self._started_cpu = time.perf_counter(), time.process_time()
        self._seen += messages
        if self._seen < self._messages:
            return False
        self._wall, self._cpu = time.perf_counter() - self._started, time.process_time() - self._started_cpu
        return True

    @property
    def measured(self) -> int:
        """How many messages lie between the two looks at the clock."""
        return self._seen - self._first

    def report(self, phases: Mapping[str, float] | None = None) -> None:
        """One line of JSON: microseconds per message by the wall and by this process's CPU, and of each phase."""
        share = 1e6 / self.measured
        said = {
            "wall": self._wall * share,
            "cpu": self._cpu * share,
            "phases": {name: took * share for name, took in (phases or {}).items()},
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    def report_and_die(self) -> None:
        """For those whose way to stop is long and is not measured."""
        self.report()
        os._exit(0)
