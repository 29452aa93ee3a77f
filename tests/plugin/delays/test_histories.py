"""Random histories of a delay topic: kills, rebalances, lost acknowledgements, rungs without a leader, unavailable targets, clocks that
differ, partitions that are added.

Whatever happens, every copy comes back, none is early, each is late within bounds, and nothing is written without end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message.message import Delivery, Origin, TopicPartition
from ackwise.middleware.message.outgoing import MISSING, Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.message.wire import Copy, retry_copy, waiting_copy
from ackwise.middleware.policies.delaytopic import ladder_of, send_later
from ackwise.middleware.progress.watermark import Watermark
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.workerstate import DelayCounts
from ackwise.plugin.delays.delaypipeline import DelayPipeline
from ackwise.plugin.delays.nexthop import Bounds, WaitingRun
from ackwise.plugin.topics.topicnames import TopicNames

NAMES = TopicNames("billing")

#: Seconds that a writer adds.
SKEW = 0.5

#: Seconds by which a copy is late besides twice the trouble: it is held for ten before it takes a rung, and steps take up to thirty.
LATE = 42.0


class World:
    """A delay topic, what comes back, and everything that can go wrong; `now` is the true time in seconds."""

    def __init__(self, draw: random.Random, partitions: int, *, broker: float, relay: float) -> None:
        self.draw, self.now = draw, 1_000_000.0
        self.partitions = partitions
        self.broker, self.relay = broker, relay  #: seconds by which their clocks are ahead
        self.logs: dict[int, list[Any]] = {number: [] for number in range(1, partitions)}
        self.committed: Counter[int] = Counter()
        self.back: dict[bytes, list[float]] = {}
        self.written = 0
        self.silent: set[int] = set()  #: rungs without a leader
        self.away: set[str] = set()  #: targets
        self.lost = 0.0  #: chance that an answer is lost
        self.keys: set[bytes] = set()  #: cancelled
        self.are_cancellations_away = False

    def add_partitions(self) -> None:
        """As an operator does: more rungs of the same cycle."""
        self.partitions += self.draw.choice([1, 13, 26])
        self.logs |= {number: [] for number in range(1, self.partitions) if number not in self.logs}

    def write(self, copy: Copy, clock: float) -> PublishUnavailable | PublishRefused | None:
        """As the one writer of all copies does."""
        if copy.topic == NAMES.delay:
            ways = ladder_of(self.partitions).ways((copy.until or 0) / 1000 - clock, sends=copy.is_send, spread=copy.partition)
            if (way := next((way for way in ways if way not in self.silent), None)) is None:
                return PublishUnavailable("no rung")
            self.written += 1
            self.logs[way].append(SimpleNamespace(
                offset=len(self.logs[way]), timestamp=round((self.now + self.broker) * 1000), timestamp_type=1,
                key=copy.key, value=copy.value, headers=copy.headers,
            ))  # fmt: skip
        elif copy.topic in self.away:
            return PublishUnavailable("no leader")
        else:
            self.back.setdefault(copy.value or b"", []).append(self.now)
        return PublishUnavailable("no answer") if self.draw.random() < self.lost else None

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        return [self.write(copy, self.now + self.relay) for copy in copies]

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        answers: list[SendAnswer] = []
        for message in messages:
            if message.topic in self.away:
                answers.append(SendFailed("missing", retriable=True, error=MISSING))
                continue
            self.back.setdefault(message.value or b"", []).append(self.now)
            answers.append(Acked(message.topic, 0, 0, 0, message.message_id))
        return answers

    async def read(self) -> None:
        if self.are_cancellations_away:
            raise KafkaConnectionError("partition 0 has no leader")

    async def close(self) -> None: ...


class Relay:
    """A relay of all rungs, from joining to its death."""

    cut_off = is_stopping = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[int, list[Run]] = {number: [] for number in world.logs}
        self.watermarks = {number: Watermark(world.committed[number]) for number in world.logs}
        self.positions = {number: world.committed[number] for number in world.logs}
        self.batch: list[Run] = []
        self.pipeline = DelayPipeline(
            NAMES, world, world, world,
            ladder=lambda: ladder_of(world.partitions), has_room=lambda: world.draw.random() > 0.1, held=self._held,
            bounds=Bounds(259_200.0, SKEW), counts=DelayCounts(), clock=lambda: world.now + world.relay, monotonic=lambda: world.now,
            longest_rest=10**6,
        )  # fmt: skip

    def _held(self) -> int:
        found = [run for runs in self.runs.values() for run in runs] + self.batch
        return sum(len(run) for run in found if isinstance(run, WaitingRun) and run.failing_since is not None)

    def pass_settled(self, runs: Sequence[Run]) -> None: ...

    def take_back(self, runs: Sequence[Run]) -> bool:
        for run in runs:
            self.runs[run.place.partition].append(run)
        return True

    async def work(self) -> None:
        """Take what is new, and let everything go on that may."""
        for number, log in self.world.logs.items():
            if number not in self.positions:  # a partition that was added
                self.runs[number], self.watermarks[number], self.positions[number] = [], Watermark(0), 0
            if records := log[self.positions[number] :]:
                self.positions[number] = len(log)
                self.watermarks[number].track(records[0].offset, records[-1].offset + 1)
                self.runs[number] += self.pipeline.make(TopicPartition(NAMES.delay, number), records)
            self.batch = [run for run in self.runs[number] if run.not_before <= self.world.now]
            self.runs[number] = [run for run in self.runs[number] if run not in self.batch]
            if self.batch:
                await self.pipeline(self.batch, self)
            for run in self.batch:
                if run.stage is not Stage.SETTLED:
                    self.runs[number].append(run)
                    continue
                for first, end in run.ranges():
                    self.watermarks[number].finish(first, end)
            self.batch = []

    def commit(self) -> None:
        for number, watermark in self.watermarks.items():
            self.world.committed[number] = watermark.commit or 0

    @property
    def next_at(self) -> float | None:
        return min((run.not_before for runs in self.runs.values() for run in runs), default=None)


def new_copy(world: World, number: int, delay: float, writer: float) -> tuple[bytes, float]:
    """Write a copy, or a message that is to be sent, that waits for `delay`; its value, and when it is due at the earliest."""
    value, clock = b"%d" % number, world.now + writer
    if number % 3:
        origin, due = Origin("orders", number % 5, number, 7), round((clock + delay + SKEW) * 1000)
        copy = retry_copy(
            Delivery(*origin, b"k", value, (), origin), topic=NAMES.delay, partition=number, group="billing", handler="bill", due=due,
            now_ms=0, reason="", waits=True,
        )  # fmt: skip
    else:
        message = Outgoing("target", value, b"k", message_id=f"id-{number}")
        due = round((clock + delay) * 1000)
        sent = send_later(message, due, now_ms=round(clock * 1000), group="billing", topic=NAMES.delay, clock_skew=SKEW)
        copy = Copy(sent.topic, number, sent.key, sent.value, sent.sent_headers, due + round(SKEW * 1000), is_send=True)
    while world.write(copy, clock) is not None:
        pass
    return value, world.now + delay


async def history(seed: int) -> None:
    draw = random.Random(seed)
    partitions = draw.choice([27, 27, 14, 4, 105])
    world = World(draw, partitions, broker=draw.uniform(-SKEW / 2, SKEW / 2), relay=draw.uniform(-SKEW / 2, SKEW / 2))
    relay, due, cancelled = Relay(world), dict[bytes, float](), set[bytes]()
    trouble_ends, trouble, begun = 0.0, 0.0, world.now
    for number in range(40):
        value, at = new_copy(world, number, 10 ** draw.uniform(-1, 3.3), draw.uniform(-SKEW / 2, SKEW / 2))
        due[value] = at
    for number in draw.sample([each for each in range(40) if each % 3], 3):
        record = next(record for log in world.logs.values() for record in log if record.value == b"%d" % number)
        world.keys.add(waiting_copy(record.headers, "billing").key)
        cancelled.add(record.value)
    steps = 0
    while len(world.back) < len(due) - len(cancelled) or trouble_ends:
        steps += 1
        assert steps < 60_000, f"{sorted(due.keys() - world.back.keys())} never come back"
        world.now = max(world.now + 0.001, min(relay.next_at or world.now + 60, world.now + draw.choice([0.05, 1.0, 30.0])))
        if trouble_ends and world.now >= trouble_ends:
            trouble_ends, world.lost, world.are_cancellations_away = 0.0, 0.0, False
            world.silent.clear()
            world.away.clear()
        if not trouble_ends and trouble < 600 and draw.random() < 0.02:
            lasts = draw.choice([2.0, 20.0, 200.0])
            trouble_ends, trouble = world.now + lasts, trouble + lasts
            match draw.randrange(4):
                case 0:
                    world.silent = {*draw.sample(sorted(world.logs), max(1, (partitions - 1) // 4))}
                case 1:
                    world.away = {draw.choice([NAMES.retry, "target"])}
                case 2:
                    world.lost = 0.3
                case _:
                    world.are_cancellations_away = True
        await relay.work()
        if draw.random() < 0.2:
            relay.commit()
        if draw.random() < 0.005 and world.partitions < 200:
            world.add_partitions()
        if draw.random() < 0.01:
            before, relay = relay, Relay(world)  # killed, or not told yet of a rebalance: another one goes on from the last commit
            if draw.random() < 0.5:
                await before.work()
    assert world.back.keys() == due.keys() - cancelled
    for value, times in world.back.items():
        assert min(times) >= due[value], "early"
        late = min(times) - due[value]
        assert late <= 2 * trouble + LATE + (60.0 if partitions == 4 else 0.0), (seed, value, late, trouble)
    elapsed = world.now - begun
    assert world.written <= 40 * (30 + 2 * elapsed), "a hot loop"


@pytest.mark.parametrize("seed", range(12))
async def test_every_copy_comes_back_never_early_and_late_within_bounds(seed: int) -> None:
    await history(seed)


@pytest.mark.nightly
@pytest.mark.slow  # further seeds
@pytest.mark.parametrize("seed", range(100, 400))
async def test_every_copy_comes_back_in_further_histories(seed: int) -> None:
    await history(seed)
