"""Dispositions: what becomes of a message. A closed union, so a new kind fails to type-check wherever it matters.

A message without a disposition is not committed. `Unrecorded` is a success whose events were not durable when its partition left. The
exceptions by which a handler rules on its messages are in `raising.py`.
"""

from __future__ import annotations

import enum
import traceback as tracebacks
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ackwise.middleware.usercode import class_name, is_printable, shown, where_raised


class Unrecorded(NamedTuple):
    """What a store keeps of it beside the outcome, as one text, so that the next claimant of the key records it."""

    writer_id: int
    """Of the events that are missing; 0 if they have none."""
    exec_id: int
    partition: int
    offset: int
    topic: str
    """Where the record that ran was first written."""

    def __str__(self) -> str:
        return f"{self.writer_id:x} {self.exec_id:x} {self.partition} {self.offset} {self.topic}"

    @classmethod
    def read(cls, text: str) -> Unrecorded | None:
        """The run that a store names; `None` if it names none."""
        try:
            writer_id, exec_id, partition, offset, topic = text.split(" ", 4)
            return cls(int(writer_id, 16), int(exec_id, 16), int(partition), int(offset), topic)
        except ValueError:
            return None

    def attributes(self, place: str) -> dict[str, Any]:
        """What the event says that the record at `place` was not run for this: where the one that ran was read, if it is another."""
        ran = f"{self.topic}/{self.partition}/{self.offset}"
        return ({} if ran == place else {"leader": ran}) | {"writer": self.writer_id}


class ConsumeStatus(enum.Enum):
    """What a handler may return other than `None`, in RocketMQ's words (ConsumeConcurrentlyStatus, ConsumeOrderlyStatus)."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    CONSUME_LATER = "CONSUME_LATER"


CONSUME_SUCCESS: Final = ConsumeStatus.CONSUME_SUCCESS
"""Done, up to `ack_index`; returning `None` says the same."""
CONSUME_LATER: Final = ConsumeStatus.CONSUME_LATER
"""Every message without its own ruling comes back later."""


class Reason:
    """Why a message is a dead letter, as the `ackwise-reason` header and the reports spell it."""

    UNDECODABLE: Final = "undecodable"
    MAX_RECONSUME_TIMES: Final = "max-reconsume-times"
    NEGATIVE_DELAY_LEVEL: Final = "negative-delay-level"
    REJECTED: Final = "rejected"
    NOT_RETRIED: Final = "not-retried"
    TOO_LARGE: Final = "too-large"
    NO_HANDLER: Final = "no-handler"
    CRASHED_WORKER: Final = "crashed-worker"
    FOREIGN_COPY: Final = "foreign-copy"
    BURIED: Final = "buried"
    ABORTED_AND_COMMITTED: Final = "aborted-and-committed"
    NO_TARGET: Final = "no-target"
    EXPIRED: Final = "expired"


#: Our reasons; any other is a text that a handler gave to `dead()`.
OUR_REASONS: Final = frozenset(value for name, value in vars(Reason).items() if name.isupper())

#: Characters that a dead letter carries of each; cut in the middle, where they say least.
_NAME_LIMIT = 200
_MESSAGE_LIMIT = 1000
_TRACEBACK_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception from user code, kept as text: class name, message and a cut traceback; and where it was raised."""

    error: str
    message: str
    traceback: str = ""
    at: str | None = None
    """Where it was raised, as `file:line`."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that `error` stands for. Works for exceptions that raise when they are looked at."""
        message, text = shown(error), shown(error, _formatted)
        return cls(_cut(class_name(error), _NAME_LIMIT), _cut(message, _MESSAGE_LIMIT), _cut(text, _TRACEBACK_LIMIT), where_raised(error))


def _formatted(error: BaseException) -> str:
    if not is_printable(error):
        raise ValueError("it is a group of too many exceptions")
    return "".join(tracebacks.format_exception(error))


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters cut …\n{text[-half:]}"


@dataclass(frozen=True, slots=True)
class Done:
    """The handler succeeded."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Decided elsewhere (a success, unless `outcome` differs), or a copy that a later one overtook; nothing to run."""

    stale: bool = False
    leader: str | None = None
    """Where the message that it follows was read, as `topic/partition/offset`."""
    dead: bool = False
    """Its key is that of a dead letter, and not of a success."""
    ran: Unrecorded | None = None
    """The run that had its key, if no event names it yet."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """Consume again later: after `delay` seconds, at `delay_level`, or (level 0) as the retry policy says."""

    delay_level: int = 0
    delay: float | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Suspended:
    """It runs again in place, `delay` seconds after the failed attempt, and what must not overtake it waits behind it."""

    delay: float
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Dead:
    """To the dead-letter topic, at once and for good."""

    reason: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """It failed, and is not sent anywhere: every instance gets everything, and another one may do better. No handler can ask for it."""

    reason: str
    failure: Failure | None = None


Disposition = Done | Duplicate | Delayed | Suspended | Dead | Dropped
DONE: Final = Done()
