"""The topics of a group's dead letters (`Place`): reading dead letters and their states, and writing states.

Reading uses no consumer group: nothing is committed, no worker is affected. The commands create the topic of states,
`<group>.dlq.state`; workers do not need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import for_code

from ackwise.middleware.errors import AckwiseError, ConfigurationError, PublishRefused
from ackwise.middleware.message.message import delivery_of
from ackwise.middleware.message.outgoing import Publisher
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.operate.deadletter import Causes, Letter, LetterId, LetterState, Selection, States, encode_state, read_letter
from ackwise.plugin.operate.deadletterfile import LetterFile
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.leftovers import CopyReader, Left, reading
from ackwise.plugin.topics.topicadmin import connected, read_topics
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicplan import Topic, state_topic


class Place(NamedTuple):
    """The topics of one group. `app` is what is known of its app, if one was named."""

    settings: HostSettings
    names: TopicNames
    app: Group | None = None

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.group

    @property
    def state_topic(self) -> str:
        """Where it is kept what was redriven or dropped."""
        return self.names.state


def place_of_app(group: Group) -> Place:
    """The place of an app's dead letters. Raises `ConfigurationError` for an app that broadcasts."""
    if not group.names.all:
        raise ConfigurationError(f"{group.settings.group!r} broadcasts: what fails there is dropped, so it has no dead letters")
    return _checked(Place(group.settings, group.names, group))


def place_of_group(settings: HostSettings, dead_letter: str | None = None) -> Place:
    """The place of the dead letters of a group without its app. Raises `ConfigurationError` for names that can't be."""
    return _checked(Place(settings, TopicNames.of(settings, dead_letter=dead_letter)))


def _checked(place: Place) -> Place:
    if place.names.dead_letter == place.state_topic:
        raise ConfigurationError(
            f"the dead-letter topic is {place.state_topic!r}, which is where it is kept what was redriven; give DeadLetter another topic"
        )
    return place


class LetterReader:
    """Reads the topics of a `Place`; made by `reading_letters`. Each call raises `Unavailable`."""

    def __init__(self, place: Place, copies: CopyReader, found: dict[TopicPartition, Left], state: dict[TopicPartition, Left]) -> None:
        self._place = place
        self.copies = copies
        self._found = found
        self._state = state

    @property
    def number(self) -> int:
        """Offsets to read: about as many dead letters there are."""
        return sum(left.end - left.position for left in self._found.values())

    @property
    def has_state_topic(self) -> bool:
        """Whether there is a topic that says what was redriven or dropped."""
        return bool(self._state)

    async def states(self) -> States:
        """What was done with dead letters, as of now."""
        states = States()
        for partition, left in self._state.items():
            async for record in self.copies.deliveries(partition, left):
                states.take(record.key, record.value)
        return states

    async def letters(self, on_progress: Callable[[int], None] = lambda letters: None) -> AsyncIterator[Letter]:
        """The dead letters that were there when this reader was made, partition by partition, oldest first."""
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
    """Return what `selection` means by its causes, the newest `most` dead letters one by one, and how many states can't be read.

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
    """Write the dead letters that `selection` takes to a new file. Return how many. Raises `AckwiseError`, and leaves no file then."""
    async with reading_letters(place) as reader:
        states = await reader.states()
        on_total(reader.number)
        with LetterFile(path) as file:
            async for letter in selection.taken(reader.letters(on_progress), states):
                file.write(letter)
        return file.number


def _of(topic: str, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return sorted(partition for partition in partitions if partition.topic == topic)


#: All of it is on one partition, so that a later word about a letter comes later.
_PARTITION: Final = 0

#: Seconds until brokers must have made the topic and told each other.
_TIMEOUT, _LOOK_AGAIN = 30.0, 0.2

_NO_ERROR, _TOPIC_EXISTS = 0, 36


async def ensure_state_topic(place: Place) -> None:
    """Return once the state topic is there. It is made if it is missing and the app may make topics.

    Raises `ConfigurationError` for one that is missing or forgets, and `Unavailable`.
    """
    topic, settings = place.state_topic, place.settings
    if settings.create_topics == "broker":  # such a broker may not say how its topics are
        async with connected(settings) as admin:
            is_there = topic in await admin.list_topics()
        if not is_there:
            raise _missing(place)
        return
    found = await read_topics(settings, {topic, place.names.dead_letter})
    if topic not in found:
        if settings.create_topics == "never":
            raise _missing(place)
        await _create(place, found.get(place.names.dead_letter))
        found = await _await_topic(place)
    if found[topic].cleanup_policy != "compact":
        raise ConfigurationError(
            f"topic {topic!r} forgets what was redriven, since its cleanup.policy is {found[topic].cleanup_policy!r}; set it to compact"
        )


def _missing(place: Place) -> ConfigurationError:
    return ConfigurationError(
        f"topic {place.state_topic!r}, which keeps what was redriven or dropped, does not exist, and create_topics is "
        f"{place.settings.create_topics!r}; create it with 1 partition and cleanup.policy=compact"
    )


async def _create(place: Place, like: Topic | None) -> None:
    made = state_topic(place.state_topic, like)
    async with connected(place.settings) as admin:
        new = NewTopic(made.name, made.partitions, made.replication, topic_configs=made.config)
        response: Any = await admin.create_topics([new])
    for topic, code, *message in response.topic_errors:
        if code not in (_NO_ERROR, _TOPIC_EXISTS):
            why = (message and message[0]) or for_code(code).__name__
            raise ConfigurationError(
                f"topic {topic!r} can't be created ({why}); create it with 1 partition and cleanup.policy=compact, or allow this client to"
            )


async def _await_topic(place: Place) -> dict[str, Topic]:
    """Brokers learn one by one of a new topic."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            while True:
                if place.state_topic in (found := await read_topics(place.settings, {place.state_topic})):
                    return found
                await asyncio.sleep(_LOOK_AGAIN)
    except TimeoutError:
        raise AckwiseError(f"topic {place.state_topic!r} was created {_TIMEOUT:g} s ago and no broker shows it; call again") from None


async def write_states(publisher: Publisher, place: Place, said: Sequence[tuple[LetterId, LetterState]]) -> None:
    """Return once all replicas have it. Raises what the publisher answers: some of it may be there."""
    copies = [Copy(place.state_topic, _PARTITION, *encode_state(letter, state), ()) for letter, state in said]
    for answer in await publisher.publish(copies) if copies else ():
        if answer is not None:
            what = "can't be noted" if isinstance(answer, PublishRefused) else "may be noted or not"
            raise type(answer)(f"what was done with these dead letters {what}: {answer}; they may be sent again, under the same replay id")
