"""`Stream`: Faust's, with messages that are claimed before an agent sees them and settled by what the agent does.

Where Faust acknowledges in a `finally`, whatever happened, nothing is acknowledged here unless the agent went on, ruled
or acknowledged itself. What an agent raises rules on the messages that were out, and the stream goes on in its successor:
no user-facing generator owns it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol, cast

from faust.exceptions import Skip
from faust.types import EventT
from mode.utils.futures import maybe_async
from mode.utils.times import Seconds, want_seconds

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.pipeline.streaming import InFlight, Where
from ackwise.middleware.runs.agent import Agent as Handler
from ackwise.middleware.usercode import Returned, Stops, is_a, where_raised
from ackwise.plugin.faust.faustinternals import FaustStream, maybe_forward
from ackwise.plugin.faust.faustmessages import AckedMessage, Inlet, StreamMessage
from ackwise.plugin.faust.work import Work, current_work

log = Log()

_SKIPPED: Any = object()

#: Messages that an agent may keep unacknowledged before it is looked at how many it does keep.
_KEPT: Final = 100


class LeftUndecided(AckwiseError):
    """A loop over a stream was left in the middle of a message, and another one started: it was not decided on."""


class Source(Protocol):
    """What feeds a stream."""

    name: str

    @property
    def handler(self) -> Handler:
        """Return the handler of the messages, for the pipeline."""
        ...

    def demand(self, count: int) -> None:
        """The stream takes `count` messages at a time."""

    def derive(self, stream: Stream) -> None:
        """Feed `stream`, which was derived and has its own channel."""

    def dismiss(self, inlet: Inlet) -> None:
        """`inlet` has no reader any more."""


class Stream(FaustStream):
    """What an agent iterates over. Without an inlet it is Faust's own: over lists, tables, channels in memory and replies."""

    source: Source | None = None
    inlet: Inlet | None = None
    _derived: Stream | None = None

    def attach(self, source: Source, inlet: Inlet) -> None:
        """Take messages from `inlet` from now on."""
        self.source, self.inlet = source, inlet
        self._loops: list[_Loop] = []  #: those that work on something
        self._unacked: list[Work] = []  #: of a stream that its agent acknowledges
        self._kept, self._look_at = 0, _KEPT  #: messages that these are of, and how many they are when it is looked at again
        self._sensed: dict[InFlight, Any] = {}
        self._first_processors = list(self.processors)
        self._forwarding = _Loop()  #: passes on what is read, for `through` and `group_by`

    def __aiter__(self) -> AsyncIterator[Any]:
        if self.inlet is None:
            return super().__aiter__()
        return _Values(self)

    async def next_value(self, loop: _Loop) -> Any:
        """The value of the next message that its processors let through. What `loop` worked on before is done."""
        assert self.inlet is not None
        self._go_on(loop)
        while True:
            member = await self._taken(self.inlet.get())
            self._work_on([member], loop)
            if (value := await self._process(member)) is not _SKIPPED:
                self.events_total += 1
                return value
            self._go_on(loop, skipped=True)

    async def take(self, max_: int, within: Seconds) -> AsyncIterator[Sequence[Any]]:  # type: ignore[override]  # a generator too
        """Like Faust's; the batch is done when the loop goes on, and `current_batch()` rules on it."""
        if self.inlet is None:
            async for values in super().take(max_, within):
                yield values
            return
        async for values, _ in self._batches(max_, within):
            yield values

    async def take_events(self, max_: int, within: Seconds) -> AsyncIterator[Sequence[EventT[Any]]]:  # type: ignore[override]
        """Like Faust's; see `take`."""
        if self.inlet is None:
            async for given in super().take_events(max_, within):
                yield given
            return
        async for _, events in self._batches(max_, within):
            yield events

    async def take_with_timestamp(  # type: ignore[override]
        self, max_: int, within: Seconds, timestamp_field_name: str
    ) -> AsyncIterator[Sequence[Any]]:
        """Like Faust's; see `take`."""
        if self.inlet is None:
            async for given in super().take_with_timestamp(max_, within, timestamp_field_name):
                yield given
            return
        async for values, events in self._batches(max_, within):
            for value, event in zip(values, events, strict=True):
                if isinstance(value, dict) and timestamp_field_name:
                    value[timestamp_field_name] = event.message.timestamp
            yield values

    async def noack_take(self, max_: int, within: Seconds) -> AsyncIterator[Sequence[Any]]:  # type: ignore[override]
        """Like Faust's: events, each of which is done when the agent has acknowledged it."""
        if self.inlet is None:
            async for given in super().noack_take(max_, within):
                yield given
            return
        async for _, events in self._batches(max_, within, acks=False):
            yield events

    async def _batches(self, max_: int, within: Seconds, *, acks: bool = True) -> AsyncIterator[tuple[list[Any], list[EventT[Any]]]]:
        assert self.inlet is not None
        assert self.source is not None
        seconds = want_seconds(within) if within else None
        self.source.demand(max_)
        loop = _Loop()
        await self.begin()
        while not self.should_stop:
            try:
                taken = await self._taken(self.inlet.gather(max_, seconds))
            except StopAsyncIteration:
                return
            values, members = [], []
            work = self._work_on(taken, loop)
            for member in taken:
                if (value := await self._process(member)) is _SKIPPED:
                    work.ack(member)
                else:
                    values.append(value)
                    members.append(member)
            if members:
                if len(members) < len(taken):
                    work.show(members)
                self.set_current(None)
                self.events_total += len(members)
                yield values, [_event(member) for member in members]
            self._go_on(loop, acks=acks)

    async def works(self, *, together: bool) -> AsyncIterator[Work]:
        """Yield what a handler function works on: messages admitted together, or each message. The next request concludes it.

        What was admitted together is of one partition, so that tables know where a change belongs.
        """
        assert self.inlet is not None
        loop = _Loop()
        await self.begin()
        while not self.should_stop:
            try:
                taken = await self._taken(self.inlet.gather_flight()) if together else [await self._taken(self.inlet.get())]
            except StopAsyncIteration:
                return
            work = self._work_on(taken, loop)
            for member in work.members:
                await self._process(member)
            self.events_total += len(work.members)
            yield work
            self._leave(loop)

    async def flights(self) -> AsyncIterator[list[InFlight]]:
        """What was handed over together, one after the other. None of it is taken: `work_on` takes it."""
        assert self.inlet is not None
        await self.begin()
        while not self.should_stop:
            try:
                yield await self._taken(self.inlet.flight())
            except StopAsyncIteration:
                return

    @asynccontextmanager
    async def work_on(self, member: InFlight) -> AsyncIterator[Work | None]:
        """With `member` in work once its rate lets it; `None` if it is not to run any more. Who asks concludes it, here or later."""
        while member.where is Where.WAITING and (seconds := member.due_in()) > 0:  # noqa: ASYNC110  # its rate is a matter of time alone
            await asyncio.sleep(seconds)
        if self.should_stop or not (member.where is Where.TAKEN or (member.where is Where.WAITING and member.take(time.monotonic()))):
            yield None
            return
        loop = _Loop()
        work = self._work_on([member], loop)
        try:
            await self._process(member)
            self.events_total += 1
            yield work
        finally:
            self._leave(loop)

    async def begin(self) -> None:
        """Start to take. What an earlier loop left in the middle is undecided: it counts as failed."""
        self.mark_finalized(True)
        await self.maybe_start()
        for loop in [loop for loop in self._loops if loop.is_left]:
            if (work := loop.work) is not None and self.enable_acks and work.is_open:
                log.warning(
                    "stream left in the middle of a message",
                    handler=self.source.name if self.source else "-",
                    messages=len(work.members),
                    topic=work.members[0].message.topic,
                    partition=work.members[0].message.partition,
                    offset=work.members[0].message.offset,
                )
                work.fail(LeftUndecided("its loop was left, and another one started; rule on it with current_batch() before"))
            self._leave(loop)

    def fail(self, error: BaseException) -> int:
        """The agent raised `error`: what it has of this stream failed. Returns how many messages that is.

        What is being passed on to another topic is in other hands.
        """
        return self._fail(error, [loop for loop in self._loops if loop is not self._forwarding])

    def _fail(self, error: BaseException, loops: Sequence[_Loop]) -> int:
        count = 0
        for work in self._out(loops):
            count += len(work.members)
            work.fail(error)
        self._leave(*loops)
        return count

    def halt(self, error: BaseException) -> bool:
        """The agent raised `error`, which stops the app: nothing is decided. Return whether a message was out, by its lane."""
        works = self._out(self._loops)
        for work in works:
            work.stop(error)
        self._leave()
        return bool(works)

    def end(self, task: asyncio.Task[Any]) -> None:
        """The agent, which ran in `task`, returned: what it worked on last is done. What it should have acknowledged itself is not."""
        for loop in [loop for loop in self._loops if loop.task is task]:
            if loop.work is not None and self.enable_acks:
                loop.work.succeed()
                self._leave(loop)
        self.forsake()

    def forsake(self) -> None:
        """The agent was cancelled: what is out of this stream stays undecided."""
        for work in self._out(self._loops):
            work.forsake()
        self._leave(*self._loops)

    def restore(self) -> None:
        """The agent starts again, and adds its processors again."""
        if self.inlet is not None and self._derived is None:
            self.processors[:] = self._first_processors

    def retire(self) -> None:
        """Its actor's partition is gone, and so is its channel: nothing more waits here."""
        if self.source is not None and self.inlet is not None:
            self.source.dismiss(self.inlet)
        self.leave_channel()

    def _out(self, loops: Iterable[_Loop]) -> list[Work]:
        """Return the unacknowledged messages and those that `loops` work on."""
        works, self._unacked = [*self._unacked, *(loop.work for loop in loops if loop.work is not None)], []
        return [work for work in works if work.is_open]

    def _go_on(self, loop: _Loop, *, acks: bool = True, skipped: bool = False) -> None:
        if (work := loop.work) is not None:
            if skipped or (acks and self.enable_acks):
                work.succeed()
            else:
                self._keep(work)
        self._leave(loop)

    def _keep(self, work: Work) -> None:
        """The agent has gone on without acknowledging `work`. How many it wants to see before it does only it knows: there is room."""
        assert self.source is not None
        self._unacked.append(work)
        self._kept += len(work.members)
        if self._kept >= self._look_at:
            self._unacked = [each for each in self._unacked if each.is_open]
            self._kept = sum(len(each.members) for each in self._unacked)
            self._look_at = 2 * self._kept + _KEPT
            self.source.demand(2 * self._kept)

    def _leave(self, *loops: _Loop) -> None:
        for loop in loops:
            work, loop.work = loop.work, None
            if work is None:
                continue
            self._loops.remove(loop)
            current_work.set(None)
            self.set_current(None)
            is_open = work.is_open
            for member in work.members:
                event, state = _event(member), self._sensed.pop(member, None)
                message = cast(AckedMessage, event.message)
                self.app.sensors.on_stream_event_out(message.tp, message.offset, self, event, state)
                self.app.sensors.on_message_out(message.tp, message.offset, message)
                if not is_open:
                    message.acknowledge = None  # or both would wait for the garbage collector

    def _work_on(self, members: Sequence[InFlight], loop: _Loop) -> Work:
        assert self.source is not None
        loop.work = work = Work(members, self.source.name)
        loop.task = asyncio.current_task()
        self._loops.append(loop)
        current_work.set(work)
        for member in members:
            message = cast(AckedMessage, _event(member).message)
            message.acked, message.acknowledge = False, partial(work.ack, member)
        return work

    async def _taken(self, taking: Awaitable[Any]) -> Any:
        if self.should_stop:
            cast(Any, taking).close()
            raise StopAsyncIteration
        return await taking

    async def _process(self, member: InFlight) -> Any:
        """Return the value after the processors. One that raises fails its message, through the agent that asked."""
        event = _event(member)
        message = event.message
        self.app.sensors.on_message_in(message.tp, message.offset, message)
        self._sensed[member] = self.app.sensors.on_stream_event_in(message.tp, message.offset, self, event)
        self.set_current(event)
        value = event.value
        try:
            for processor in self.processors:
                value = await maybe_async(processor(value))
            value = await self.on_merge(value)
        except Skip:
            return _SKIPPED
        return value

    def clone(self, **kwargs: Any) -> Stream:
        """Like Faust's. A clone with its own channel has its own intake."""
        new = cast(Stream, super().clone(**kwargs))
        if self.inlet is not None and self.source is not None:
            if "channel" in kwargs:
                self.source.derive(new)
            else:
                new.attach(self.source, self.inlet)
        return new

    def noack(self) -> Stream:
        """Like Faust's; called again by an agent that starts again, it answers the same stream."""
        if self.inlet is None:
            return cast(Stream, super().noack())
        if self._derived is None:
            self._derived = cast(Stream, super().noack())
        return self._derived

    def through(self, channel: Any) -> Stream:
        """Like Faust's; a message is done when its copy in `channel` is acknowledged. Called again it answers the same stream."""
        return self._derive(lambda: super(Stream, self).through(channel))

    def group_by(self, key: Any, **kwargs: Any) -> Stream:
        """Like Faust's; a message is done when its repartitioned copy is acknowledged. Called again it answers the same stream."""
        return self._derive(lambda: super(Stream, self).group_by(key, **kwargs))

    def _derive(self, make: Callable[[], Any]) -> Stream:
        if self.inlet is None:
            return cast(Stream, make())
        if self._derived is None:
            self.mark_finalized(False)
            self._derived = cast(Stream, make())
            self._first_processors = list(self.processors)
        self.processors[:] = self._first_processors
        self._derived.restore()
        return self._derived

    def combine(self, *nodes: Any, **kwargs: Any) -> Any:
        """Refused: Faust merges no events, so a message could not be said to be done."""
        if self.inlet is None:
            return super().combine(*nodes, **kwargs)
        raise ConfigurationError(
            f"agent {self.source.name if self.source else '-'!r} combines streams, which Faust does not finish and Ackwise leaves alone; "
            "consume each topic in its own agent, and join through a table"
        )

    def echo(self, *channels: Any) -> Stream:
        """Like Faust's; an error in one of them is one of the agent."""
        if self.inlet is None:
            return cast(Stream, super().echo(*channels))
        topics = [self.derive_topic(channel) if isinstance(channel, str) else channel for channel in channels]

        async def echoing(value: Any) -> Any:
            await asyncio.gather(*(maybe_forward(value, cast(Any, topic)) for topic in topics))
            return value

        self.add_processor(echoing)
        return self

    async def make_key(self, key: Any, value: Any) -> Any:
        """Faust skips a message whose key can't be made; here it has failed."""
        if self.inlet is None:
            return await super().make_key(key, value)
        return key.getattr(value) if hasattr(key, "getattr") else await maybe_async(key(value))

    async def forward_into(self, channel: Any, declare: bool) -> None:
        """Forward for `through` and `group_by`. What can't be forwarded comes back later; the others go on."""
        if self.inlet is None:
            return await super().forward_into(channel, declare)
        if declare:
            await channel.maybe_declare()
        self.mark_forwarding()
        await self.begin()
        while not self.should_stop:
            task, found = in_a_task(self._forward)  # until a key function or a filter of the user's raises, or a broker refuses
            is_cancelled = await ended(task)
            outcome = outcome_of(found)
            if isinstance(outcome, Returned):
                return None
            error = outcome.error
            if isinstance(outcome, Stops):
                self.halt(error)
                return None
            if is_cancelled and is_a(error, asyncio.CancelledError):
                raise error
            log.debug("what forwarding raised", raised=error, at=where_raised(error))
            self._fail(error, [self._forwarding])
        return None

    async def _forward(self) -> None:
        while not self.should_stop:
            try:
                await self.next_value(self._forwarding)
            except StopAsyncIteration:
                return


class _Loop:
    """One loop over a stream. An agent may run several beside one another, each in a task."""

    __slots__ = ("task", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        self.task: asyncio.Task[Any] | None = None  #: who took that

    @property
    def is_left(self) -> bool:
        """Return whether it is abandoned, as far as that shows where another one starts: its task starts that, or has ended."""
        return self.task is None or self.task is asyncio.current_task() or self.task.done()


class _Values:
    """Iterates over the values of a stream. It may be left at any time: the stream outlives it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = _Loop()
        self._has_begun = False

    def __aiter__(self) -> _Values:
        return self

    async def __anext__(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            await self._stream.begin()
        return await self._stream.next_value(self._loop)


def _event(member: InFlight) -> EventT[Any]:
    return cast(StreamMessage, member.message).event
