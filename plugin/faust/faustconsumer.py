"""Faust's consumer, conductor and producer, changed so that Ackwise decides what is consumed and committed.

Faust counts a jump between two records as a hole in the log, and holes as acknowledged. But a poll is dropped where
the flow stops or the generation changes, and the client's position has moved on by then: the jump is lost messages. Here an
offset is passed only if it was settled, or if a fetch from exactly its position proved that the log has nothing there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Protocol, cast

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP
from faust.types.tuples import FutureMessage
from mode import Service

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.consumer.fetching import Fetched
from ackwise.plugin.faust.faustinternals import FaustConductor, FaustConsumer, FaustProducer
from ackwise.plugin.faust.fetchthread import Awaiting, ReliableThread
from ackwise.plugin.faust.work import current_work
from ackwise.plugin.kafka.aiokafkainternals import has_stopped_sending, show_alive
from ackwise.plugin.kafka.clients import close_consumer
from ackwise.plugin.kafka.throttling import watch_throttling

#: Seconds until partitions are looked at again while all of them are full.
_LOOK_AGAIN = 0.02

#: Seconds between two checks of the producer's client.
_WATCH = 0.5

#: Seconds for closing what the producer's client has left open.
_CLOSE = 2.0


class HostCalls(Awaiting, Protocol):
    """Who decides what is consumed and committed."""

    @property
    def channels(self) -> AbstractSet[Any]:
        """Those that it feeds itself."""
        ...

    async def open(self, consumer: ReliableConsumer) -> None:
        """The consumer starts."""

    async def close(self) -> None:
        """The consumer has stopped."""

    async def subscribed(self, topics: Iterable[str]) -> list[str]:
        """What to subscribe to, other than `topics`."""
        ...

    async def assigned(self, assigned: Iterable[TP]) -> None:
        """These partitions are ours now."""

    async def revoked(self, revoked: Iterable[TP]) -> None:
        """These are not, once this returns."""

    async def drain(self) -> None:
        """The app stops."""

    async def commit(self) -> None:
        """Commit what is settled."""

    def reads(self, tp: TP) -> bool:
        """Return whether an agent reads it."""
        ...

    def is_full(self, tp: TP) -> bool:
        """Return whether nothing more should be fetched of it now."""
        ...

    async def has_room(self, seconds: float) -> None:
        """Wait until that may have changed, for at most `seconds`."""

    def take(self, fetched: Fetched) -> dict[Any, Any]:
        """Take what agents read; returns the rest."""
        ...

    async def insist(self, start: Callable[[], Awaitable[object]], undo: Callable[[], Awaitable[object]]) -> None:
        """Start something that brokers must answer, again while they are unavailable."""

    def watch(self, sent: asyncio.Future[Any]) -> None:
        """Something was sent that belongs to no message."""


class ReliableConsumer(FaustConsumer):
    """Gives what it fetches to Ackwise where an agent reads it, and commits of that what Ackwise says."""

    @property
    def thread(self) -> ReliableThread:
        """What it fetches in."""
        return cast(ReliableThread, super().thread)

    @property
    def _host(self) -> HostCalls:
        host: HostCalls = cast(Any, self.app).ackwise
        return host

    def make_thread(self) -> ReliableThread:
        """Like Faust's, which fetches from where Ackwise stands."""
        return ReliableThread(self, loop=self.loop, beacon=self.beacon)

    async def on_start(self) -> None:
        """Open what was used before anything is consumed."""
        await self._host.open(self)
        await super().on_start()

    async def stop(self) -> None:
        """Stop, then close what was used."""
        await super().stop()
        await self._host.close()

    async def fetch_from(self, active_partitions: Any, timeout: float) -> Any:
        """Like Faust's, of those partitions alone that have room."""
        if active_partitions is None:
            return await super().fetch_from(active_partitions, timeout)
        wanted = {tp for tp in active_partitions if not self._host.is_full(tp)}
        if not wanted:
            await self.thread.call_thread(show_alive, self.thread.require_client())
            await self._host.has_room(_LOOK_AGAIN)
            return {}
        return await super().fetch_from(wanted, timeout if len(wanted) == len(active_partitions) else min(timeout, _LOOK_AGAIN))

    async def next_records(self, timeout: float) -> Any:
        """Like Faust's, less what Ackwise takes."""
        records, active = await super().next_records(timeout)
        if isinstance(records, Fetched):
            left_at = records.left_at
            records = self._host.take(records)
            self.thread.give({tp: found for tp, found in records.items() if not self._host.reads(tp)}, left_at)
        return records, active

    def ack(self, message: Any) -> bool:
        """Like Faust's; on a partition that Ackwise reads it says nothing about offsets."""
        if not self._host.reads(message.tp):
            return super().ack(message)
        message.acked = True
        self.forget_unacked(message)
        return True

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Like Faust's, and what Ackwise has settled."""
        await self._host.commit()
        return cast(bool, await super().force_commit(topics, start_new_transaction))

    async def commit_settled(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit what Ackwise has settled, and tell Faust's tables and monitor. Raises what the broker answers.

        Nothing is flushed: what was settled was delivered before, and a producer that has stopped must not keep it from being said.
        """
        by_tp = {TP(*partition): each.offset for partition, each in offsets.items()}
        await self._in_thread(self.thread.commit_exactly, offsets)
        now = asyncio.get_running_loop().time()
        self.thread.tp_last_committed_at.update(dict.fromkeys(by_tp, now))
        self.app.tables.on_commit(by_tp)
        self.note_committed(by_tp)
        self.app.monitor.on_tp_commit(by_tp)

    async def call(self, ask: Any, *args: Any) -> Any:
        """`await ask(consumer, *args)` where the client lives, in its own thread. Raises `KafkaError`."""
        return await self._in_thread(ask, self.thread.require_client(), *args)

    async def _in_thread(self, ask: Any, *args: Any) -> Any:
        """A crash ends the thread first: what was to be committed then is as one that no broker answered."""
        if self.thread.should_stop:
            raise KafkaConnectionError("the thread of the app's consumer has stopped")
        return await self.thread.call_thread(ask, *args)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Settle what runs, commit, and give the partitions back."""
        await self._host.revoked(revoked)
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Note what agents read; it is fetched when Faust's tables are recovered and it is known where to start.

        A worker that leaves takes nothing on: its thread ends, and would never answer what is asked of the broker.
        """
        if not self.app.should_stop:
            await self._host.assigned(assigned)
        await super().on_partitions_assigned(assigned, generation_id)

    async def wait_empty(self) -> None:
        """Like Faust's. When the app stops, what agents work on is settled first."""
        if self.app.should_stop:
            await self._host.drain()
        await super().wait_empty()

    async def on_stop(self) -> None:
        """Like Faust's."""
        await self._host.drain()
        with suppress(asyncio.CancelledError):
            await super().on_stop()


class ReliableConductor(FaustConductor):
    """Subscribes to the group's retry topic as well, and hands no message to a channel that Ackwise feeds."""

    @property
    def _host(self) -> HostCalls:
        host: HostCalls = cast(Any, self.app).ackwise
        return host

    async def subscribed(self) -> Iterable[str]:
        """Like Faust's, and the retry topic."""
        topics = await super().subscribed()
        return [*topics, *await self._host.subscribed(topics)]

    def make_handler(self, tp: TP, channels: Any) -> Any:
        """Like Faust's, without the channels that Ackwise feeds."""
        return super().make_handler(tp, channels - set(self._host.channels))

    def others(self, tp: TP) -> bool:
        """Return whether anybody reads `tp` past Ackwise: a stream outside of agents."""
        return bool(self.channels_of(tp) - set(self._host.channels))


class ReliableProducer(FaustProducer):
    """What an agent sends is part of its work: the work is not done before it is acknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffered: set[FutureMessage] = set()

    async def on_start(self) -> None:
        """Like Faust's, once there is a broker: it is the first of a worker that looks for one."""
        await cast(Any, self.app).ackwise.insist(super().on_start, self._close_client)
        watch_throttling(self.client)

    async def _close_client(self) -> None:
        if self.client is not None:
            await self.client.stop()

    async def on_stop(self) -> None:
        """Like Faust's. The client is closed also where it gives up half-way, as its task ends with what one of its requests ended with."""
        producer = self.client
        try:
            await super().on_stop()
        finally:
            if producer is not None:
                await close_consumer(producer, within=_CLOSE)

    @Service.task
    async def _watch_client(self) -> None:
        """Raise `AckwiseError` if the client sends nothing any more: a caller that waits for its send would wait forever."""
        while not self.should_stop:
            await asyncio.sleep(_WATCH)
            if self.client is not None and not self.should_stop and has_stopped_sending(self.client):
                raise AckwiseError(
                    f"the Kafka client of the producer of app {self.app.conf.id!r} has stopped by itself; messages in flight may not "
                    "be sent; the worker stops, and nothing that may depend on that is committed"
                )

    def send_soon(self, fut: FutureMessage) -> None:
        """Like Faust's; `deliver` waits for it."""
        self._buffered.add(fut)
        fut.add_done_callback(self._sent)
        super().send_soon(fut)

    def _sent(self, fut: asyncio.Future[Any]) -> None:
        self._buffered.discard(cast(FutureMessage, fut))
        if not fut.cancelled():
            fut.exception()  # `send` reports it to the host; asyncio need not warn that it was never retrieved

    async def flush(self) -> None:
        """Like Faust's. What can't be sent any more, which `deliver` reports, does not keep the app from stopping.

        That is what a client has that has stopped by itself, and what waits in a buffer that has stopped.
        """
        if self.client is not None and has_stopped_sending(self.client):
            return
        if not self.buffer.should_stop:
            await super().flush()
        elif self.client is not None:
            await self.client.flush()

    async def deliver(self) -> None:
        """Return once all that was sent so far is acknowledged or refused. Raises `AckwiseError` if some of it will never be sent.

        Faust's `flush` knows what waits in its buffer and what its client has; what is on its way from one to the other it
        takes for sent, and a buffer that does not move for 0.1 seconds too.
        """
        waiting = set(self._buffered)
        await self.flush()
        while waiting := {sent for sent in waiting if not sent.done()}:
            if self.buffer.should_stop:
                raise AckwiseError(
                    f"{len(waiting)} changes of tables, or other messages of send_soon(), can't be sent any more, since the app's producer "
                    "has stopped; nothing that may depend on them is committed"
                )
            await asyncio.wait(waiting, timeout=0.1)

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        """Like Faust's."""
        sent = await super().send(*args, **kwargs)
        if isinstance(sent, asyncio.Future):
            if (work := current_work.get()) is not None:
                work.track(sent)
            else:
                cast(Any, self.app).ackwise.watch(sent)
        return sent
