"""`Sharing`: a worker's part in a share group, next to the lanes of its retry topic; `Portion`: the locked records of one partition.

Each record that a broker locks for this worker ends in one of two ways: it is settled and then accepted, or a copy of it is on the
retry topic, uncharged, and then it is accepted. It is given back only when the worker stops: each time counts as a delivery, and
after the last one that the broker allows, five by default, nobody gets the record any more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.flow.flowcontrol import PAUSED
from ackwise.middleware.log import Log, LogThrottle
from ackwise.middleware.message.disposition import Delayed, Failure
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.policies.policies import Share
from ackwise.middleware.policies.retry import SendBack
from ackwise.middleware.runs.redelivery import decide
from ackwise.middleware.runs.run import Run, Stage, apart, count, ranges_of
from ackwise.middleware.usercode import Raised, Stops
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.workerstate import ShareCounts
from ackwise.plugin.kafka.timeouts import ended
from ackwise.plugin.modes.shareclient import Poll, Record, ShareClient, consumer_config, ensure_share_group


class Portion:
    """What the pipeline asks of a partition, for records that are owned for no longer than a lock.

    `accept` is called with the offsets that are settled, once each.
    """

    def __init__(
        self,
        place: TopicPartition,
        records: Sequence[Record],
        deadline: float,
        accept: Callable[[TopicPartition, Iterable[int]], None],
        *,
        again: bool,
    ) -> None:
        """`deadline`: monotonic seconds after which nothing of it may start. `again`: it was delivered before."""
        self.place = place
        self.records = records
        self.deadline = deadline
        self.again = again
        self.cut_off = False
        self.is_stopping = False
        self.left = {record.offset for record in records}  #: offsets that are not accepted
        self.runs: list[Run] = []  #: those that the pipeline has now
        self.stirred = asyncio.Event()  #: it stops, or is cut off
        self._accept = accept

    def pass_settled(self, runs: Sequence[Run]) -> None:
        """Those of `runs` that are SETTLED are accepted, once."""
        settled = [run for run in runs if run.stage is Stage.SETTLED and not run.passed]
        offsets: list[int] = []
        for run in settled:
            run.passed = True
            offsets += run.offsets
        if offsets:
            self.left.difference_update(offsets)
            self._accept(self.place, offsets)

    @property
    def unsettled(self) -> list[Run]:
        """What the pipeline has of it and has not settled."""
        return [run for run in self.runs if run.stage is not Stage.SETTLED]

    @property
    def running(self) -> int:
        """How many messages a handler has."""
        return count(run for run in self.runs if run.call is not None)

    def stop(self) -> None:
        """Nothing more of it starts; what is running, and what is decided, is still settled."""
        self.is_stopping = True
        self.stirred.set()
        for run in self.runs:
            if run.call is not None:
                run.call.recall()

    def cut(self) -> None:
        """From now on nothing of it is published; its handler is cancelled."""
        self.cut_off = True
        self.stop()
        self.call_off()

    def call_off(self) -> None:
        """Cancel the handler that is running."""
        for run in self.runs:
            if run.call is not None:
                run.call.call_off()


log = Log()

#: To the retry topic, at once and without a charge.
_ASIDE: Final = SendBack(0.0, 0, charged=False)

#: Why a copy is uncharged, as its `ackwise-reason` says.
_AGAIN, _LATE, _HELD = "DeliveredAgain", "LockEnds", "Held"

#: The error of a handler that was cancelled since its time was over.
_TIMED_OUT: Final = "ConsumeTimeout"

#: Seconds after the cut-off for a handler that was cancelled, and for the consumers to leave the group.
_GRACE, _LEAVE = 4.0, 4.0

#: Seconds that a step of the end gets, however late it is.
_AT_LEAST: Final = 0.5

#: Seconds between two checks of what is paused.
_LOOK_AGAIN: Final = 1.0

#: Stands for all partitions of a topic: a share group owns no partition.
_ANY: Final = -1


class _At(NamedTuple):
    offset: int


class Sharing:
    """The consumers of one worker in the share group of `member`, for `topics`."""

    def __init__(self, share: Share, topics: Sequence[str], member: Member) -> None:
        self._share = share
        self._topics = topics
        self._member = member
        self._group = share.group_of(member.settings.group)
        self._portions: set[Portion] = set()
        self._counts = member.share_counts = ShareCounts(share.consumers)
        self._throttle = LogThrottle()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """With consumers that poll until the member stops. Raises `ConfigurationError` if the share group can't be made what it must be."""
        member = self._member
        await member.opening.insist(partial(ensure_share_group, member.settings, self._share))
        config = consumer_config(member.settings, self._share)
        clients = [ShareClient(config, self._topics, self._acknowledged, group=self._group) for _ in range(self._share.consumers)]
        for client in clients:
            await client.open()
        pulling = [member.spawn(self._pull(client), f"share {number}") for number, client in enumerate(clients, 1)]
        stopping = member.spawn(self._stop_in_time(pulling), "share stop")
        try:
            yield
        finally:
            member.stop.set()
            left = member.opening.time_left(member.settings.drain_timeout + _GRACE + _LEAVE) - _LEAVE
            await asyncio.wait([*pulling, stopping], timeout=max(_AT_LEAST, left))
            closing = asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
            if not await ended(closing, within=_LEAVE):
                log.warning("share group could not be left", group=self._group)

    async def _stop_in_time(self, pulling: Collection[asyncio.Task[None]]) -> None:
        """Once the member stops nothing more starts; what still runs after `drain_timeout` is cancelled."""
        await self._member.stop.wait()
        within = self._member.settings.drain_timeout
        if self._portions:
            log.info("draining", group=self._group, partitions=len(self._portions), at_most=within, stopping=True)
        for portion in list(self._portions):
            portion.stop()
        await asyncio.wait(pulling, timeout=within)
        for portion in list(self._portions):
            portion.cut()

    async def _pull(self, client: ShareClient) -> None:
        while not self._member.stop.is_set():
            if self._is_shut:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._member.stop.wait(), _LOOK_AGAIN)
            elif (poll := await client.poll()) is not None:
                await self._take(poll, client)

    @property
    def _is_shut(self) -> bool:
        """Whether nothing is to be polled: all handlers are paused, or stopped by a breaker."""
        member = self._member
        handlers = [(pipeline.agent.name, topic) for pipeline in member.pipelines.values() for topic in pipeline.agent.topics]
        return bool(handlers) and all(member.worker.flow.is_shut(name, TopicPartition(topic, _ANY)) for name, topic in handlers)

    async def _take(self, poll: Poll, client: ShareClient) -> None:
        """Take all of a poll to its end: then the next one is allowed."""
        deadline = poll.at + self._share.seconds
        portions = [
            Portion(place, records, deadline, client.accept, again=again)
            for found, again in ((poll.again, True), (poll.first, False))
            for place, records in found.items()
        ]
        self._portions.update(portions)
        self._counts.in_hand += sum(len(portion.records) for portion in portions)
        if self._member.stop.is_set():
            for portion in portions:
                portion.stop()
        tasks = [self._member.spawn(self._work(portion), f"share {'/'.join(map(str, portion.place))}") for portion in portions]
        await asyncio.wait(tasks)  # one that fails stops the worker
        for portion in portions:
            self._leave(portion, client)

    def _leave(self, portion: Portion, client: ShareClient) -> None:
        """What is left of it is given back: the worker stops."""
        self._portions.discard(portion)
        self._counts.in_hand -= len(portion.records)
        if self._member.leases is not None:
            for run in portion.unsettled:
                self._member.leases.give_back(run)
        if portion.left:
            self._counts.released += len(portion.left)
            client.release(portion.place, sorted(portion.left))

    async def _work(self, portion: Portion) -> None:
        for first, end in ranges_of(portion.records):
            self._member.record(Event(EventCode.RECEIVED_RANGE, *portion.place, first, range_end=end))
        (whole,) = self._member.routes.from_source(portion.place, portion.records)
        assert whole.pipeline is not None
        size = whole.pipeline.agent.max_batch
        while len(whole) and not portion.cut_off and (portion.again or not portion.is_stopping):
            await self._settle([whole.cut(min(size, len(whole)))], portion)

    async def _settle(self, runs: list[Run], portion: Portion) -> None:
        """Take `runs` through the pipeline until all are accepted, or the worker stops."""
        pipeline, portion.runs = runs[0].pipeline, runs
        assert pipeline is not None
        flow, name = self._member.worker.flow, pipeline.agent.name
        if flow.held_until(name, portion.place) is not None:
            _pause(runs)
        self._put_aside(runs, portion)
        while True:
            with self._calling_off(portion):
                await pipeline(runs, portion)
            portion.pass_settled(runs)
            if not portion.unsettled or portion.cut_off:
                return
            if portion.is_stopping and all(run.stage is Stage.FETCHED for run in portion.unsettled):
                return
            if flow.is_paused(name, portion.place):
                _pause(runs)
            self._put_aside(runs, portion)
            await self._wait(portion)

    @contextmanager
    def _calling_off(self, portion: Portion) -> Iterator[None]:
        """With an end for the handler while the lock still holds."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(0.0, portion.deadline - self._member.worker.monotonic()), portion.call_off)
        try:
            yield
        finally:
            timer.cancel()

    async def _wait(self, portion: Portion) -> None:
        """Until something of it is due, or it stops. What is decided goes on beyond the lock: it is not decided again."""
        due = min((run.not_before for run in portion.unsettled), default=0.0)
        portion.stirred.clear()
        if (seconds := due - self._member.worker.monotonic()) > 0 and not portion.cut_off:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await portion.stirred.wait()

    def _put_aside(self, runs: list[Run], portion: Portion) -> None:
        """What may not start here, or not in time, goes to the retry topic: a lock can't wait for a claim or a store.

        What succeeded here is no such thing: it waits for the store, and is never run again.
        """
        if portion.is_stopping and not portion.again:
            return
        now, broken = self._member.worker.monotonic(), list[Raised | Stops]()
        is_over = now >= portion.deadline
        for run in [run for run in runs if run.stage <= Stage.FETCHED and not run.succeeded]:
            latest = portion.deadline if run.stage is Stage.WITHHELD else now  # what is withheld comes up again by itself
            if portion.again or is_over or run.not_before > latest:
                why = _AGAIN if portion.again else _LATE if is_over else _HELD
                for single in apart(runs, run):
                    self._send_aside(single, why, broken, timed_out=is_over and single.exec_ids is not None)
        self._member.worker.report_broken(runs[0].pipeline.agent.name if runs and runs[0].pipeline is not None else "-", broken)

    def _send_aside(self, run: Run, why: str, broken: list[Raised | Stops], *, timed_out: bool) -> None:
        if self._member.leases is not None:
            self._member.leases.give_back(run)
        run.forget_claim()
        run.not_before = 0.0
        if timed_out:  # a failure as any other
            failure = Failure(_TIMED_OUT, f"it did not end within {self._share.seconds:g} s, and its lock would have")
            if (raised := decide(run, Delayed(failure=failure), self._member.worker.later_for(run))) is not None:
                broken.append(raised)
            return
        self._counts.copied += 1
        run.error, run.send_back = why, _ASIDE
        run.rule(Delayed())
        if why != _AGAIN and self._throttle.is_due(why):
            log.warning(
                "share group messages moved to retry",
                group=self._group,
                topic=run.place.topic,
                partition=run.place.partition,
                why=why,
            )

    def _acknowledged(self, place: TopicPartition, offsets: Sequence[int], refused: str | None) -> None:
        """The broker has spoken: what it accepted is done, what it refused is delivered again, and is known by its key then."""
        if refused is None:
            self._counts.accepted += len(offsets)
            return
        self._counts.refused += len(offsets)
        for first, end in ranges_of([_At(offset) for offset in offsets]):
            self._member.record(Event(EventCode.ACCEPT_REFUSED, *place, first, range_end=end, error=refused))
        if self._throttle.is_due("refused"):
            log.warning(
                "share group locks expired",
                group=self._group,
                topic=place.topic,
                partition=place.partition,
                messages=len(offsets),
                error=refused,
            )


def _pause(runs: Iterable[Run]) -> None:
    """What may not start of `runs` waits for longer than any lock."""
    for run in runs:
        if run.stage <= Stage.FETCHED:
            run.postpone(math.inf, PAUSED)
