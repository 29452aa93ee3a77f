"""A shop of Faust agents on a real broker: its topics, what was ordered, its `faust worker` processes, and what became of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from tests.servers import RawKafka
from tests.waiting import until

ROOT = Path(__file__).parents[2]

#: Seconds until what a test waits for has failed to happen; a start of Faust takes six on a busy machine.
DEADLINE = 60.0

#: Exit codes of workers that were stopped or killed by a test.
ENDED_BY_US = (0, -signal.SIGKILL)


@dataclass(frozen=True)
class Placed:
    """An order as the producer sends it; `fail_times` is how many of its executions fail, -1 stands for all."""

    id: str
    customer: str
    fail_times: int = 0

    @property
    def value(self) -> bytes:
        return json.dumps(vars(self)).encode()


def orders(style: str, count: int, fail_times: Mapping[int, int] | None = None) -> list[Placed]:
    """Orders of a style in turn from eight customers; `fail_times` names those that fail."""
    return [Placed(f"{style}-{number}", f"c{number % 8}", (fail_times or {}).get(number, 0)) for number in range(count)]


@dataclass
class Worker:
    """A `faust worker` process, and the file that it writes to."""

    process: asyncio.subprocess.Process
    log: Path

    async def stop(self) -> int:
        """Let it leave in order; returns its exit code, and fails if it does not leave."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.process.wait(), DEADLINE)
        except TimeoutError:
            raise AssertionError(f"{self.log.name}: did not leave within {DEADLINE:.0f} s\n{self.said()}") from None

    async def kill(self) -> None:
        """End it in the midst of what it does."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def said(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-4000:]


@dataclass
class Shop:
    """One group and its agents, one for each style; used as `async with`, which ends what still runs."""

    raw: RawKafka
    folder: Path
    group: str
    styles: Sequence[str]
    ackwise: bool
    partitions: int = 2
    pause: float = 0.0  #: seconds that an order takes
    store: str | None = None  #: the URL of the claims
    asked: Sequence[Placed] = ()  #: what the worker itself asks the agent `ask`
    workers: list[Worker] = field(default_factory=list)

    async def __aenter__(self) -> Shop:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.raw.bootstrap)
        self._reader = AIOKafkaConsumer(bootstrap_servers=self.raw.bootstrap, enable_auto_commit=False)
        await self._admin.start()
        await self._reader.start()
        topics = [*(self.topic(style) for style in self.styles), f"{self.group}.invoices", f"{self.group}.paid"]
        answer: Any = await self._admin.create_topics([NewTopic(topic, self.partitions, 1) for topic in topics])
        assert [code for _, code, _ in answer.topic_errors] == [0] * len(topics)
        await until(self._admin.list_topics, lambda found: {*topics} <= {*found})
        return self

    async def __aexit__(self, *error: object) -> None:
        for worker in self.workers:
            await worker.kill()
        await self._reader.stop()
        await self._admin.close()

    def topic(self, style: str) -> str:
        return f"{self.group}.{style}"

    async def order(self, style: str, placed: Sequence[Placed | bytes]) -> None:
        """Send to a style's topic as a producer does, a customer always to the same partition; acknowledged when it returns."""
        producer = AIOKafkaProducer(bootstrap_servers=self.raw.bootstrap, acks="all")
        await producer.start()
        reports: list[asyncio.Future[Any]] = []
        try:
            for one in placed:
                if isinstance(one, Placed):
                    partition = int(one.customer.removeprefix("c")) % self.partitions
                    reports.append(await producer.send(self.topic(style), one.value, key=one.customer.encode(), partition=partition))
                else:
                    reports.append(await producer.send(self.topic(style), one, partition=0))
            await asyncio.gather(*reports)
        finally:
            await producer.stop()

    async def start(self, hostile: str = "") -> Worker:
        """Start a worker process; it runs when this returns, and may not have joined the group. `hostile` is what it suffers."""
        about = {
            "brokers": self.raw.bootstrap,
            "group": self.group,
            "folder": str(self.folder),
            "styles": list(self.styles),
            "ackwise": self.ackwise,
            "partitions": self.partitions,
            "pause": self.pause,
            "store": self.store,
            "asked": [vars(one) for one in self.asked],
        }
        log = self.folder / f"worker-{len(self.workers)}.log"
        command = (sys.executable, "-m", "faust", "-A", "tests.faust.shop", "worker", "-l", "info", "--without-web")
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env={**os.environ, "SHOP": json.dumps(about), "HOSTILE": hostile}, stdout=output, stderr=output
            )
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def billed(self) -> list[dict[str, Any]]:
        """The ledger: every execution that succeeded, in the order in which they were written. A line that a kill tore tells of none."""
        path = self.folder / "ledger"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [billed for line in lines if (billed := _parse(line)) is not None]

    def runs(self) -> Counter[str]:
        """How often each order was billed."""
        return Counter(line["id"] for line in self.billed())

    def tries(self) -> Counter[str]:
        """How often each order that fails was tried."""
        return Counter({path.name.removeprefix("tries-"): path.stat().st_size for path in self.folder.glob("tries-*")})

    async def dead(self) -> Counter[str]:
        """The ids of the orders in the dead-letter topic."""
        topic = f"{self.group}.dlq"
        return Counter(_id(record.value) for record in await self.raw.records(topic)) if topic in await self.raw.topics() else Counter()

    async def invoices(self) -> set[str]:
        """What the agent `yields` sent on."""
        return {json.loads(record.value or b"") for record in await self.raw.records(f"{self.group}.invoices")}

    async def table(self) -> dict[str, int]:
        """What the table of the agent `table` holds by customer, as its changelog says."""
        records = await self.raw.records(f"{self.group}-billed-changelog")
        return {json.loads(record.key or b""): json.loads(record.value or b"") for record in records}

    def answers(self) -> set[str]:
        """What the agent `ask` answered."""
        path = self.folder / "answers"
        return set(path.read_text().split("\n")[:-1]) if path.exists() else set()

    async def has_asked(self) -> bool:
        """Whether all questions stand in the topic of the agent `ask`."""
        return len(await self.raw.records(self.topic("ask"))) == len(self.asked)

    async def lost(self, style: str) -> set[str]:
        """What was ordered, is committed past, and is neither in the ledger nor a dead letter."""
        committed = await self.raw.committed(self.group)
        there = self.runs().keys() | (await self.dead()).keys()
        ordered = [(_id(record.value), record) for record in await self.raw.records(self.topic(style))]
        return {
            id
            for id, record in ordered
            if record.offset < committed.get(TopicPartition(record.topic, record.partition), 0) and id not in there
        }

    async def behind(self) -> dict[str, tuple[int | None, int]]:
        """The partitions of the group whose committed offset is not their end, and the two."""
        consumed = [topic for topic in await self.raw.topics() if _is_consumed(topic, self.group)]
        try:
            committed = {**await self.raw.committed(self.group), **await self.raw.committed(f"{self.group}.relay")}
            described: Any = await self._admin.describe_topics(consumed)
        except KafkaError as error:  # a broker that just came up knows no coordinator yet
            return {str(error): (None, 0)}
        places = [TopicPartition(topic["topic"], one["partition"]) for topic in described for one in topic["partitions"]]
        ends = await self._reader.end_offsets(places)
        return {
            f"{place.topic}/{place.partition}": (committed.get(place), end)
            for place, end in ends.items()
            if end > 0 and committed.get(place) != end
        }

    async def wait_until(self, condition: Callable[[], Awaitable[object] | object], what: str) -> None:
        """Until `condition` holds; fails after the deadline, or when a worker ends, with what the workers said."""
        try:
            async with asyncio.timeout(DEADLINE):
                while True:
                    answer = condition()
                    if await answer if isinstance(answer, Awaitable) else answer:
                        return
                    ended = [worker for worker in self.workers if worker.process.returncode not in (None, *ENDED_BY_US)]
                    assert not ended, f"{what} did not happen: {ended[0].log.name} ended\n{ended[0].said()}"
                    await asyncio.sleep(0.2)
        except TimeoutError:
            said = "\n".join(f"{worker.log.name}: {worker.said()}" for worker in self.workers)
            raise AssertionError(
                f"{self.group}: {what} did not happen within {DEADLINE:.0f} s; behind: {await self.behind()}\n{said}"
            ) from None

    async def wait_until_billed(self, count: int) -> None:
        """Until as many orders are billed."""
        await self.wait_until(lambda: len(self.runs()) >= count, f"the bill of {count} orders")

    async def wait_until_committed(self, *styles: str) -> None:
        """Until everything in the group's topics, or in those of some styles, is committed: for Kafka, nothing is open."""

        async def nothing_is_open() -> bool:
            behind = await self.behind()
            return not behind if not styles else not any(name.startswith(f"{self.topic(style)}/") for name in behind for style in styles)

        await self.wait_until(nothing_is_open, f"the commit of everything in {', '.join(styles) or 'all topics'}")

    async def wait_until_still(self, seconds: float = 6.0) -> None:
        """Until nothing was billed or committed for a while, though not everything is committed.

        Faust looks every five seconds for agents that died.
        """
        seen: list[tuple[float, object]] = []

        async def nothing_moved() -> bool:
            state = (len(self.billed()), await self.behind())
            now = asyncio.get_running_loop().time()
            if not state[0] or not state[1] or not seen or seen[-1][1] != state:
                seen.append((now, state))
            return now - seen[-1][0] > seconds

        await self.wait_until(nothing_moved, "stillness")


def _parse(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _is_consumed(topic: str, group: str) -> bool:
    """Whether it belongs to the group, and somebody commits what he read of it; `group_by` puts its agent's name before that."""
    return (f"{group}." in topic or topic.startswith(f"{group}-")) and not topic.endswith(
        (".control", ".dlq", ".invoices", "-changelog", "__leader")
    )


def _id(value: bytes | None) -> str:
    """The id of an order, asked for or sent; what can't be read stands for itself."""
    try:
        order = json.loads(value or b"")
        return str((order if "id" in order else order["value"])["id"])
    except (ValueError, KeyError, TypeError):
        return repr(value)
