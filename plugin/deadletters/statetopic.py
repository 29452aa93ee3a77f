"""State topic: what was done with dead letters is written to `<group>.dlq.state`, which the commands make, and no worker asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka.admin import NewTopic
from aiokafka.errors import for_code

from ackwise.middleware.errors import AckwiseError, ConfigurationError, PublishRefused
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.wire import Copy
from ackwise.plugin.deadletters.letter import LetterId
from ackwise.plugin.deadletters.letterstate import LetterState, encode_state
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.group.topicplan import Topic, state_topic
from ackwise.plugin.group.topics import connected, read_topics

__all__ = ["ensure_state_topic", "write_states"]

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
            raise type(answer)(f"what was done with these letters {what}: {answer}; they may be sent again, under the same replay id")
