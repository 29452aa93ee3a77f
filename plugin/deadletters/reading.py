"""Reading of dead letters, and of what was done with them, by a consumer of no group: nothing is committed, nobody is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.message import Delivery
from ackwise.plugin.deadletters.letter import Letter, read_letter
from ackwise.plugin.deadletters.letterstate import States
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.group.copyreader import CopyReader, Left, reading

__all__ = ["LetterReader", "reading_letters", "record_at"]

#: Seconds in which a broker must have given the next records.
_PATIENCE: Final = 30.0


class LetterReader:
    """Reads the topics of a `Place`; made by `reading_letters`. Each call raises `KafkaError` or `TimeoutError`."""

    def __init__(self, place: Place, copies: CopyReader, found: dict[TopicPartition, Left], state: dict[TopicPartition, Left]) -> None:
        self._place = place
        self._copies = copies
        self._found = found
        self._state = state

    @property
    def number(self) -> int:
        """Offsets to read: about as many letters there are."""
        return sum(left.end - left.position for left in self._found.values())

    @property
    def has_state_topic(self) -> bool:
        """Whether there is a topic that says what was redriven or dropped."""
        return bool(self._state)

    async def states(self) -> States:
        """What was done with letters, as of now."""
        states = States()
        for partition, left in self._state.items():
            async for record in _records(self._copies, partition, left):
                states.take(record.key, record.value)
        return states

    async def letters(self, on_progress: Callable[[int], None] = lambda letters: None) -> AsyncIterator[Letter]:
        """The letters that were there when this reader was made, partition by partition, oldest first."""
        for partition, left in self._found.items():
            through = left.position
            async for record in _records(self._copies, partition, left):
                if record.offset >= left.end:
                    break
                yield read_letter(record, self._place.group)
                on_progress(record.offset + 1 - through)
                through = record.offset + 1
            on_progress(left.end - through)

    async def letter(self, partition: int, offset: int) -> Letter | None:
        """One letter; `None` if it is not there."""
        place = TopicPartition(self._place.names.dead_letter, partition)
        found = await record_at(self._copies, place, offset, self._found.get(place))
        return None if found is None else read_letter(found, self._place.group)


async def record_at(copies: CopyReader, partition: TopicPartition, offset: int, left: Left | None) -> Delivery | None:
    """One record of a partition that has what is `left`; `None` if it is not there. Raises `KafkaError` and `TimeoutError`."""
    if left is None or not left.position <= offset < left.end:
        return None
    async with aclosing(_records(copies, partition, left._replace(position=offset))) as records:
        async for record in records:
            return record if record.offset == offset else None
    return None


async def _records(copies: CopyReader, partition: TopicPartition, left: Left) -> AsyncGenerator[Delivery, None]:
    records = aiter(copies.records(partition, left))
    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                record, _ = await anext(records)
        except StopAsyncIteration:
            return
        yield record


@asynccontextmanager
async def reading_letters(place: Place) -> AsyncIterator[LetterReader]:
    """A reader while the block runs. Raises `ConfigurationError` without a dead-letter topic, and `Unavailable`."""
    topic, state = place.names.dead_letter, place.state_topic
    try:
        async with reading(place.settings, place.names) as copies:
            partitions = await copies.partitions([topic, state])
            if not (letters := _of(topic, partitions)):
                raise ConfigurationError(
                    f"there is no topic {topic!r} at {place.settings.brokers}, or this client may not see it; name the group as its "
                    "workers do, or the topic that its app gives DeadLetter"
                )
            yield LetterReader(place, copies, await copies.left(letters, {}), await copies.left(_of(state, partitions), {}))
    except (KafkaError, TimeoutError) as error:
        raise Unavailable(
            f"the brokers {place.settings.brokers!r} do not give what is in {topic!r} ({type(error).__name__}); see that they are there, "
            "and that this client may read it"
        ) from error


def _of(topic: str, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return sorted(partition for partition in partitions if partition.topic == topic)
