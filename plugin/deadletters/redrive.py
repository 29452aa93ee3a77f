"""Redrive: which letters may be sent again and how, decided letter by letter. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ackwise.middleware.message import Delivery
from ackwise.middleware.wire import Copy, retry_copy
from ackwise.plugin.deadletters.letter import Letter
from ackwise.plugin.group.topicnames import TopicNames

__all__ = ["OPEN", "REASON", "Redriven", "RedriveFate", "Replay", "copy_of", "refusal"]

#: The reason that the copies say.
REASON: Final = "redrive"

#: Letters of each fate that are named.
_SHOWN: Final = 20


class RedriveFate(enum.StrEnum):
    """What became of a letter, in the words that are printed."""

    SENT = "sent"
    READY = "would be sent"
    FOREIGN = "not written by this group, or not readable"
    ORIGINLESS = "no message of a handler: it was found in a topic of the group itself"
    HANDLERLESS = "its handler is no longer in the app"
    RENAMED = "a header's name is no UTF-8, which a copy can't carry"
    SHORTENED = "it was shortened, and its origin is no longer there"
    REFUSED = "refused by the broker for good"


#: What is left for somebody of this group: it makes the exit code 1. Several groups may share a dead-letter topic.
OPEN: Final = frozenset(RedriveFate) - {RedriveFate.SENT, RedriveFate.READY, RedriveFate.FOREIGN}


@dataclass(eq=False, slots=True)
class Replay:
    """A letter on its way back. `delivery` is what is sent, whole; `fate` is `None` until it is known."""

    letter: Letter
    delivery: Delivery
    number: int
    fate: RedriveFate | None = None


@dataclass
class Redriven:
    """What became of letters."""

    counts: Counter[tuple[str, RedriveFate]] = field(default_factory=Counter)
    """By handler."""
    places: dict[RedriveFate, list[str]] = field(default_factory=dict)
    """Of each fate that leaves something to do, the first letters."""
    recorded: bool = True
    """Whether events say what was sent."""
    stopped: bool = False
    """It was asked to stop before the end."""

    def add(self, replays: Iterable[Replay]) -> None:
        """Count these; what has no fate may be sent."""
        for each in replays:
            fate = each.fate or RedriveFate.READY
            self.counts[each.letter.handler, fate] += 1
            if fate in OPEN and len(shown := self.places.setdefault(fate, [])) < _SHOWN:
                shown.append(str(each.letter.id))

    @property
    def is_done(self) -> bool:
        """Whether nobody has to do anything more."""
        return not self.places and not self.stopped

    def number(self, fate: RedriveFate) -> int:
        """How many letters had it."""
        return sum(number for (_, found), number in self.counts.items() if found is fate)


def refusal(letter: Letter, names: TopicNames, handlers: Collection[str]) -> RedriveFate | None:
    """Why a letter may not be sent, as far as it says so itself; `None` if it may."""
    if letter.problem:
        return RedriveFate.FOREIGN
    origin = letter.delivery.origin.topic
    if (of := names.template.of(origin)) is not None and of.group == names.group and of.kind in ("retry", "delay", "send"):
        return RedriveFate.ORIGINLESS
    if letter.handler not in handlers:
        return RedriveFate.HANDLERLESS
    return RedriveFate.RENAMED if "ackwise-header-names" in letter.fields else None


def copy_of(replay: Replay, replay_id: bytes, *, topic: str, group: str, now_ms: int) -> Copy:
    """The copy for the retry topic: the first attempt of a message that no store has seen."""
    message = replay.delivery._replace(attempt=1, first_seen_ms=None, replay_id=replay_id)
    partition, handler = message.origin.partition, replay.letter.handler
    return retry_copy(
        message, topic=topic, partition=partition, group=group, handler=handler, due=now_ms, now_ms=now_ms, reason=REASON, charged=False
    )
