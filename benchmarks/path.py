"""How much of Ackwise a healthy batch passes through: the functions and calls from the fetch of 100 messages until their commit.

    python -m benchmarks.path [--messages 100] [--list] [--json]

One worker on the in-memory Kafka, with `Dedup` in memory, an event sink, and a handler that takes the batch and reads each value. Python's
profiler counts each function of the library and each call to one; a coroutine that continues after it waited counts as called again.
Functions that an idle worker calls too are left out. So is what only some of three batches call, since it depends on timers and not on the
messages. A comprehension is part of its function. No time is measured, so other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import ackwise
from ackwise import App, Batch, Dedup, Event
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.handlers.observers import Observed
from ackwise.stores.memory import MemoryStore
from ackwise.testing import MemoryKafka

_LIBRARY: Final = Path(ackwise.__file__).resolve().parent

#: The folders that a worker consists of; the in-memory Kafka is in another one.
_WORKER: Final = frozenset({"middleware", "plugin", "stores"})

#: Code that the compiler may or may not make a function of, by the version of Python.
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})

_GROUP: Final = "path"
_TOPIC: Final = "orders"

_COMMIT_INTERVAL: Final = 0.5  # seconds
_LEASE: Final = 3.0  # seconds; the worker looks for claims to renew every second
_IDLE: Final = 4.0  # seconds: more than the time between two heartbeats, the longest of a worker's timers
_BATCHES: Final = 3
_WITHIN: Final = 60.0  # seconds for a batch to be committed


class Function(NamedTuple):
    """A function of the library. `file` is relative to the package, `name` has the class before it."""

    file: str
    name: str

    @property
    def class_name(self) -> str | None:
        """The class that it is a method of, if it is one."""
        owner, _, _ = self.name.partition(".<locals>")[0].rpartition(".")
        return owner or None


@dataclass(frozen=True, slots=True)
class Passed:
    """The functions that a batch passed through, with the number of calls to each."""

    messages: int
    calls: Mapping[Function, int]

    def figures(self) -> dict[str, int]:
        """The counts by name, in the order of the table."""
        return {
            "functions": len(self.calls),
            "classes": len({(function.file, function.class_name) for function in self.calls if function.class_name is not None}),
            "files": len({function.file for function in self.calls}),
            "calls": sum(self.calls.values()),
        }


class _Profiler:
    """Counts calls by their code while it is on."""

    def __init__(self) -> None:
        self._counts: Counter[CodeType] = Counter()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count in this thread, and in those that start meanwhile."""
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def calls(self) -> Counter[Function]:
        """The calls to functions of the library."""
        found: Counter[Function] = Counter()
        for code, times in self._counts.items():
            file = Path(code.co_filename).resolve()
            if code.co_name not in _COMPREHENSIONS and file.is_relative_to(_LIBRARY):
                relative = file.relative_to(_LIBRARY)
                if relative.parts[0] in _WORKER:
                    found[Function(relative.as_posix(), code.co_qualname)] += times
        return found

    def _call(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._counts[frame.f_code] += 1


async def measure(messages: int = 100) -> Passed:
    """Let a worker handle batches, and return what each of them passed through. Raises `TimeoutError` if one is not committed."""
    app = App(_GROUP, commit_interval=_COMMIT_INTERVAL, create_topics="auto")
    app.use(Dedup("memory://", lease=_LEASE))
    batches: list[int] = []

    @app.agent(_TOPIC, max_batch=messages)
    async def handle(batch: Batch[bytes]) -> None:
        batches.append(sum(1 for message in batch if message.value))

    group, events = app.group(), list[Event]()
    async with MemoryKafka() as kafka:
        kafka.create_topic(_TOPIC)
        host = AiokafkaHost(
            dataclasses.replace(group.settings, brokers=kafka.bootstrap),
            group.agents,
            Parts(group.slots.later, group.slots.dead_letter, dedup=group.dedup, store=MemoryStore(), sink=Observed([events.append], None)),
        )
        stop = asyncio.Event()
        worker = asyncio.create_task(host.run(stop))
        idle, busy = _Profiler(), [_Profiler() for _ in range(_BATCHES)]
        try:
            await asyncio.wait_for(host.has_joined.wait(), _WITHIN)
            for _ in range(2):  # these import modules and fill caches
                await _commit(kafka, messages)
            await asyncio.sleep(_IDLE)
            with idle.on():
                await asyncio.sleep(_IDLE)
            for profiler in busy:
                with profiler.on():
                    await _commit(kafka, messages)
        finally:
            stop.set()
            await worker
    if set(batches) != {messages}:
        raise RuntimeError(f"a batch of {messages} messages was to be measured, and the handler got batches of {batches}")
    left_out, (first, *others) = idle.calls(), [profiler.calls() for profiler in busy]
    fewest = {function: min(times, *(other[function] for other in others)) for function, times in first.items()}
    return Passed(messages, {function: times for function, times in fewest.items() if times and function not in left_out})


async def _commit(kafka: MemoryKafka, messages: int) -> None:
    """Write one batch, and return when it is committed."""
    offsets = kafka.produce(_TOPIC, *(b"order %d" % number for number in range(messages)))
    async with asyncio.timeout(_WITHIN):
        while (committed := kafka.committed(_GROUP).get((_TOPIC, 0))) is None or committed.offset <= offsets[-1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def main() -> None:
    """Measure, and print a table, a list of the functions, or the figures as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.path", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100, help="messages of the batch; default: 100")
    parser.add_argument("--list", action="store_true", help="the functions as well, those with the most calls first")
    parser.add_argument("--json", action="store_true", help="the figures as a JSON object, and no table")
    options = parser.parse_args()
    passed = asyncio.run(measure(options.messages))
    if options.json:
        print(json.dumps({"messages": passed.messages, **passed.figures()}))
        return
    print(f"{passed.messages} messages in one batch, from fetch to commit")
    for name, figure in passed.figures().items():
        print(f"{name:<12}{figure:>8,}")
    if options.list:
        for function, times in sorted(passed.calls.items(), key=lambda item: (-item[1], item[0])):
            print(f"{times:>6}  {function.file}  {function.name}")


if __name__ == "__main__":
    main()
