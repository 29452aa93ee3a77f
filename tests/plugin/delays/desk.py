"""A rung of a delay topic on a desk: the delay pipeline without Kafka, where time passes when a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import KafkaConnectionError

from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable
from ackwise.middleware.events import Event
from ackwise.middleware.message.message import Delivery, Headers, Origin, TopicPartition
from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer
from ackwise.middleware.message.wire import Copy, retry_copy, waiting_copy
from ackwise.middleware.policies.delaytopic import ladder_of, send_later
from ackwise.middleware.progress.watermark import Watermark
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.workerstate import DelayCounts
from ackwise.plugin.delays.delaypipeline import DelayPipeline
from ackwise.plugin.delays.nexthop import Bounds, WaitingRun
from ackwise.plugin.topics.topicnames import TopicNames

NAMES = TopicNames("billing")

_Answer = PublishUnavailable | PublishRefused | None


class Broker:
    """What happens, in order: cancellations read, events recorded and durable, records sent. It is all that the pipeline works with."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.sent: list[Copy] = []
        self.messages: list[Outgoing] = []
        self.events: list[Event] = []
        self.keys: set[bytes] = set()
        self.cancelled_by_the_end: set[bytes] = set()  #: what a reading adds to `keys`
        self.cancellations_are_away = self.log_is_away = False
        self.answer: Any = lambda copy: None
        self.answer_of_send: Any = lambda message: None

    async def read(self) -> None:
        self.log.append("read")
        if self.cancellations_are_away:
            raise KafkaConnectionError("no partition 0")
        self.keys |= self.cancelled_by_the_end

    async def publish(self, copies: Sequence[Copy]) -> list[_Answer]:
        self.log.append(f"publish {len(copies)}")
        answers: list[_Answer] = [self.answer(copy) for copy in copies]
        self.sent += [copy for copy, answer in zip(copies, answers, strict=True) if answer is None]
        return answers

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        self.log.append(f"send {len(messages)}")
        answers: list[SendAnswer] = [self.answer_of_send(each) or Acked(each.topic, 0, 0, 0, each.message_id) for each in messages]
        self.messages += [each for each, answer in zip(messages, answers, strict=True) if isinstance(answer, Acked)]
        return answers

    def record(self, event: Event) -> None:
        self.log.append(event.code.name)
        self.events.append(event)

    async def flush(self) -> None:
        self.log.append("flush")
        if self.log_is_away:
            raise EventLogUnavailable("disk full")

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Desk:
    """One rung, that of 10 s unless `partition` is another one. `now` is the time of every clock, in seconds."""

    def __init__(self, broker: Broker | None = None, *, partition: int = 1, has_events: bool = True, partitions: int = 27) -> None:
        self.now = 1_000.0
        self.broker = broker or Broker()
        self.counts = DelayCounts()
        self.place = TopicPartition(NAMES.delay, partition)
        self.runs: list[Run] = []
        self.batch: list[Run] = []  #: what is at work
        self.watermark = Watermark(0)
        self.has_room = True
        self.cut_off = False
        self.pipeline = DelayPipeline(
            NAMES, self.broker, self.broker, self.broker,
            ladder=lambda: ladder_of(partitions), has_room=lambda: self.has_room, held=self._held, bounds=Bounds(100.0, 0.5),
            counts=self.counts, sink=self.broker if has_events else None,
            clock=lambda: self.now, monotonic=lambda: self.now, longest_rest=10**6,
        )  # fmt: skip

    def _held(self) -> int:
        return sum(len(run) for run in (*self.runs, *self.batch) if isinstance(run, WaitingRun) and run.failing_since is not None)

    def put(self, *offsets: int, **how: Any) -> None:
        """Records that are fetched together; see `record`."""
        records = [self.record(offset, **how) for offset in offsets]
        for record in records:
            self.watermark.track(record.offset)
        self.runs += self.pipeline.make(self.place, records)

    def record(
        self,
        offset: int,
        due: float = 1_010.0,
        *,
        handler: str = "bill",
        replay_id: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
        appended: float | None = None,
        is_append_time: bool = True,
        send_to: str | None = None,
    ) -> Any:
        """A record that is due at `due`, in seconds, appended now or then. With `send_to` it is a message for that topic."""
        origin = Origin("orders", 2, offset + 100, 7)
        if send_to is not None:
            message = Outgoing(send_to, value or b"%d" % offset, b"key", (("trace", b"t"),), message_id=f"id-{offset}")
            sent = send_later(message, round(due * 1000), now_ms=0, group="billing", topic=NAMES.delay, clock_skew=0.0)
            key, body, found = sent.key, sent.value, sent.sent_headers
        else:
            delivery = Delivery(*origin, b"key", value or b"%d" % offset, (("trace", b"t"),), origin, replay_id=replay_id)
            copy = retry_copy(
                delivery, topic=NAMES.delay, partition=2, group="billing", handler=handler, due=round(due * 1000), now_ms=0, reason="Later"
            )
            key, body, found = copy.key, copy.value, copy.headers
        return SimpleNamespace(
            offset=offset, timestamp=round((self.now if appended is None else appended) * 1000), timestamp_type=int(is_append_time),
            key=key, value=body, headers=found if headers is None else headers,
        )  # fmt: skip

    def key(self, offset: int, **how: Any) -> bytes:
        return waiting_copy(self.record(offset, **how).headers, "billing").key

    async def turn(self, now: float | None = None) -> None:
        """Let what comes up at `now` go as far as it does."""
        self.now = self.now if now is None else now
        batch = self.batch = [run for run in self.runs if run.not_before <= self.now]
        self.runs = [run for run in self.runs if run not in batch]
        if batch:
            await self.pipeline(batch, self)
        for run in batch:
            if run.stage is Stage.SETTLED:
                for first, end in run.ranges():
                    self.watermark.finish(first, end)
            else:
                self.runs.append(run)
        self.batch = []

    async def until(self, now: float) -> None:
        """Let everything come up that does until `now`, when it does."""
        while (at := self.next_at) is not None and at <= now:
            await self.turn(max(at, self.now))
        self.now = now

    @property
    def next_at(self) -> float | None:
        return min((run.not_before for run in self.runs), default=None)

    # What the pipeline asks of a lane.

    @property
    def is_stopping(self) -> bool:
        return False

    def pass_settled(self, runs: Sequence[Run]) -> None: ...

    def take_back(self, runs: Sequence[Run]) -> bool:
        self.runs += runs
        return True

    @property
    def went(self) -> list[tuple[str, bytes | None]]:
        """Where everything went, in order."""
        return [(copy.topic, copy.value) for copy in self.broker.sent]
