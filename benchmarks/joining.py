"""How long a member takes from its assignment until the last of many partitions is open, and by how many requests.

    python -m benchmarks.joining --partitions 1000 --round-trip 0.03

It starts its own Kafka, with a source topic of so many partitions and a retry topic of as many. `--round-trip` is
added to each request of the client. It prints the seconds from the callback to the last `seek`, and the requests meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient

from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.local.localkafka import local_kafka
from ackwise.plugin.settings.hostsettings import HostSettings

_CLIENT: Final = "joining"


class Watch:
    """When partitions came, when the last of them was sought, and what was asked between the two."""

    def __init__(self, partitions: int) -> None:
        self._waits_for = partitions
        self._began = 0.0
        self._opened: set[TopicPartition] = set()
        self.requests: Counter[str] = Counter()
        self.seconds = 0.0
        self.callback = 0.0
        self.done = asyncio.Event()

    @contextmanager
    def installed(self, round_trip: float) -> Iterator[None]:
        """While clients and assignments are watched."""
        note, begin, send = Opening.note, Opening._begin, AIOKafkaClient.send

        def noted(opening: Opening, assigned: Iterable[TopicPartition]) -> None:
            partitions = list(assigned)
            self._began = time.perf_counter() if partitions else 0.0
            self.requests.clear()
            note(opening, partitions)
            self.callback = time.perf_counter() - self._began

        def begun(opening: Opening, partition: TopicPartition, position: Any) -> None:
            begin(opening, partition, position)
            self._opened.add(partition)
            if len(self._opened) == self._waits_for:
                self.seconds = time.perf_counter() - self._began
                self.done.set()

        async def sent(client: Any, node: Any, request: Any, **options: Any) -> Any:
            if client._client_id == _CLIENT and not self.done.is_set():
                self.requests[type(request).__name__] += 1
            if round_trip:
                await asyncio.sleep(round_trip)
            return await cast(Any, send)(client, node, request, **options)

        Opening.note, Opening._begin, AIOKafkaClient.send = noted, begun, sent  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Opening.note, Opening._begin, AIOKafkaClient.send = note, begin, send  # type: ignore[method-assign]


async def join(brokers: str, partitions: int, round_trip: float, group: str) -> Watch:
    """Join alone, with all partitions of the topic and of the retry topic."""
    watch, stop = Watch(2 * partitions), asyncio.Event()

    async def ignore(batch: object) -> None: ...

    agent: Any = Agent("bill", ("orders",), "batch", ignore, lambda value: value)
    settings = HostSettings(brokers=brokers, group=group, client_id=_CLIENT, session_timeout=10)
    host = AiokafkaHost(settings, [agent], Parts(ConsumeLater(1, levels="1s"), DeadLetter()))
    with watch.installed(round_trip):
        running = asyncio.create_task(host.run(stop))
        await asyncio.wait({running, asyncio.create_task(watch.done.wait())}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await running
    return watch


async def _measure(brokers: str, partitions: int, round_trip: float) -> None:
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    await admin.create_topics([NewTopic("orders", partitions, 1)])
    await admin.close()
    for again in ("first", "again"):  # a group that never committed, and one that has
        watch = await join(brokers, partitions, round_trip, "joining")
        asked = ", ".join(f"{name} {times}" for name, times in sorted(watch.requests.items()))
        print(f"{again}: {2 * partitions} partitions, {round_trip * 1000:g} ms added to each request")
        print(f"  last seek {watch.seconds:.3f} s after the callback started, which took {watch.callback:.3f} s")
        print(f"  requests meanwhile: {asked}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--round-trip", type=float, default=0.0)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, local_kafka(Path(folder)) as broker:
        asyncio.run(_measure(broker.bootstrap, told.partitions, told.round_trip))


if __name__ == "__main__":
    main()
