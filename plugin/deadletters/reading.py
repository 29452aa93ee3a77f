"""Reading of dead letters, and of what was done with them, in no group: nothing is committed, nobody is disturbed.

All of them by their causes, one, or those that are exported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import TopicPartition

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import delivery_of
from ackwise.plugin.deadletters.causes import Causes
from ackwise.plugin.deadletters.letter import Letter, read_letter
from ackwise.plugin.deadletters.letterfile import LetterFile
from ackwise.plugin.deadletters.letterstate import LetterState, States
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.selection import Selection
from ackwise.plugin.group.copyreader import CopyReader, Left, reading

__all__ = ["LetterReader", "export", "list_letters", "look_up", "reading_letters"]


class LetterReader:
    """Reads the topics of a `Place`; made by `reading_letters`. Each call raises `Unavailable`."""

    def __init__(self, place: Place, copies: CopyReader, found: dict[TopicPartition, Left], state: dict[TopicPartition, Left]) -> None:
        self._place = place
        self.copies = copies
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
            async for record in self.copies.deliveries(partition, left):
                states.take(record.key, record.value)
        return states

    async def letters(self, on_progress: Callable[[int], None] = lambda letters: None) -> AsyncIterator[Letter]:
        """The letters that were there when this reader was made, partition by partition, oldest first."""
        for partition, left in self._found.items():
            through = left.position
            async for record in self.copies.deliveries(partition, left):
                yield read_letter(record, self._place.group)
                on_progress(record.offset + 1 - through)
                through = record.offset + 1
            on_progress(left.end - through)

    async def letter(self, partition: int, offset: int) -> Letter | None:
        """One letter; `None` if it is not there."""
        place = TopicPartition(self._place.names.dead_letter, partition)
        if (left := self._found.get(place)) is None or not left.position <= offset < left.end:
            return None
        found = await self.copies.first(place, offset, offset + 1)
        return None if found is None else read_letter(delivery_of(place, found), self._place.group)


@asynccontextmanager
async def reading_letters(place: Place) -> AsyncIterator[LetterReader]:
    """A reader while the block runs. Raises `ConfigurationError` without a dead-letter topic, and `Unavailable`."""
    topic, state = place.names.dead_letter, place.state_topic
    async with reading(place.settings, place.names) as copies:
        partitions = await copies.partitions([topic, state])
        if not (letters := _of(topic, partitions)):
            raise ConfigurationError(
                f"there is no topic {topic!r} at {place.settings.brokers}, or this client may not see it; name the group as its workers "
                "do, or the topic that its app gives DeadLetter"
            )
        yield LetterReader(place, copies, await copies.left(letters, {}), await copies.left(_of(state, partitions), {}))


async def list_letters(
    place: Place,
    selection: Selection,
    most: int,
    *,
    on_total: Callable[[int], None] = lambda letters: None,
    on_progress: Callable[[int], None] = lambda letters: None,
) -> tuple[Causes, int]:
    """Return what `selection` means by its causes, the newest `most` letters one by one, and how many states can't be read.

    The whole topic is read, in no group. Raises `ConfigurationError` without a dead-letter topic, and `Unavailable`.
    """
    causes = Causes(most)
    async with reading_letters(place) as reader:
        states = await reader.states()
        on_total(reader.number)
        async for letter in selection.taken(reader.letters(on_progress), states):
            causes.add(letter, states)
    return causes, states.unreadable


async def look_up(place: Place, partition: int, offset: int) -> tuple[Letter, LetterState | None] | None:
    """Return one letter and its state; `None` if it is not there. Raises as `list_letters`."""
    async with reading_letters(place) as reader:
        states, letter = await reader.states(), await reader.letter(partition, offset)
    return None if letter is None else (letter, states.of(letter))


async def export(
    place: Place, selection: Selection, path: Path, *, on_total: Callable[[int], None], on_progress: Callable[[int], None]
) -> int:
    """Write the letters that `selection` takes to a new file. Returns how many. Raises `AckwiseError`, and leaves no file then."""
    async with reading_letters(place) as reader:
        states = await reader.states()
        on_total(reader.number)
        with LetterFile(path) as file:
            async for letter in selection.taken(reader.letters(on_progress), states):
                file.write(letter)
        return file.number


def _of(topic: str, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return sorted(partition for partition in partitions if partition.topic == topic)
