"""Outlet: what is written to one partition, in order; while one batch is on its way, the next one gathers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError

from ackwise.middleware.wire import Copy
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.produceerrors import UnencodableError, refusal_of

__all__ = ["Outlet"]

#: Copies in a row that fail by themselves, in batches of their own, until the rest of their batch is left alone.
_MOST_IN_A_ROW: Final = 10


class _Queued(NamedTuple):
    producer: AIOKafkaProducer
    copy: Copy
    within: float
    answered: asyncio.Future[BaseException | None]


class Outlet:
    """Writes copies to partition `partition` of `topic`."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._queue: deque[_Queued] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def send(self, producer: AIOKafkaProducer, copies: Sequence[Copy], *, within: float) -> list[BaseException | None]:
        """Write `copies`; what each was answered: nothing if all in-sync replicas have it, `KafkaTimeoutError` after `within` seconds.

        Whatever the client raises, a cancellation of its own too, is an answer.
        """
        loop = asyncio.get_running_loop()
        queued = [_Queued(producer, copy, within, loop.create_future()) for copy in copies]
        self._queue += queued
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name=f"ackwise writes {self._topic}/{self._partition}")
        return [await each.answered for each in queued]

    async def _write(self) -> None:
        while self._queue:
            taken: list[_Queued] = []
            try:
                batch = self._pack(taken)
            except Exception:  # noqa: BLE001  # the client can't encode a copy: the first, or the one behind those taken
                await self._write_singly(taken)
                continue
            error = await self._try(batch, taken[0])
            if len(taken) > 1 and error is not None and refusal_of(error).is_about_record:  # of some of them; nobody knows which
                await self._write_singly(taken)
                continue
            if isinstance(error, KafkaTimeoutError):
                taken += self._queue  # what is behind it would wait as long
                self._queue.clear()
            for each in taken:
                _answer(each, error)

    async def _write_singly(self, taken: Sequence[_Queued]) -> None:
        """Each in a batch of its own; where many in a row fail, the partition itself may be at fault."""
        in_a_row = 0
        for each in taken:
            if in_a_row == _MOST_IN_A_ROW:
                _answer(each, KafkaError("the partition took none of the copies before it"))  # of this one nothing was said
                continue
            error = await self._try_one(each)
            in_a_row = in_a_row + 1 if error is not None and refusal_of(error).is_about_record else 0
            _answer(each, error)

    def _pack(self, taken: list[_Queued]) -> Any:
        """A batch of what is queued; what is in it goes from the queue to `taken`. One without records takes one of any size."""
        first = self._queue.popleft()
        taken.append(first)
        batch = first.producer.create_batch()
        _put(batch, first.copy)
        while self._queue and self._queue[0].producer is first.producer and _put(batch, self._queue[0].copy):
            taken.append(self._queue.popleft())
        batch.close()
        return batch

    async def _try_one(self, queued: _Queued) -> BaseException | None:
        try:
            batch = queued.producer.create_batch()
            _put(batch, queued.copy)
        except Exception as error:  # noqa: BLE001  # see `send`
            return error
        return await self._try(batch, queued)

    async def _try(self, batch: Any, first: _Queued) -> BaseException | None:
        try:
            await answer(_send(first.producer, batch, self._topic, self._partition), within=first.within)
        except Exception as error:  # noqa: BLE001  # see `send`
            return error
        return None


async def _send(producer: AIOKafkaProducer, batch: Any, topic: str, partition: int) -> None:
    await (await producer.send_batch(batch, topic, partition=partition))


def _put(batch: Any, copy: Copy) -> bool:
    """Whether the batch took it. Raises `UnencodableError`."""
    try:
        return batch.append(timestamp=None, key=copy.key, value=copy.value, headers=list(copy.headers)) is not None
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise UnencodableError(f"the client can't encode the copy ({type(error).__name__})") from error


def _answer(queued: _Queued, error: BaseException | None) -> None:
    if not queued.answered.done():  # whoever waited may have been cancelled
        queued.answered.set_result(error)
