"""`Letter`: a record of a dead-letter topic, and what it says of itself. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple

from ackwise.middleware.message import Delivery
from ackwise.middleware.wire import ForeignCopy, OtherWire, parse_letter

__all__ = ["REPLAY", "Cause", "Letter", "LetterId", "read_letter"]

#: How the replay id of a redriven message begins; its number follows.
REPLAY: Final = "redrive-"
_NUMBER: Final = re.compile(rb"redrive-(\d{1,9})")

#: A frame of a traceback, also of one that is drawn inside of a group of exceptions.
_FRAME: Final = re.compile(r'^[ |]*File "([^"\n]*)", line (\d+), in ([^\n]*)$', re.MULTILINE)

#: Files that are nobody's own code, in forward slashes.
_INSTALLED: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "/ackwise/middleware/", "/ackwise/plugin/")

#: Folders of a file that make a place known, whatever it is installed below.
_PARTS: Final = 2


class LetterId(NamedTuple):
    """What names a dead letter, also once its topic was made anew."""

    partition: int
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


class Cause(NamedTuple):
    """Why a message died, the same for all that died of it: `fingerprint` is 8 hex digits, by reason, class, and file and function."""

    fingerprint: str
    reason: str
    error: str
    """Class of the exception; empty without one."""
    place: str
    """`file:function` where it was raised, of the user's own code where there is some; empty without an exception."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `delivery` is where it lies, with the producer's headers and the origin, as far as they can be read."""

    delivery: Delivery
    fields: Mapping[str, str]
    """Our headers."""
    record: Delivery
    """As it lies in its topic, headers of ours included."""
    problem: str = ""
    """Why it can't be read as a letter of this group, if so."""

    @property
    def id(self) -> LetterId:
        """What names it."""
        return LetterId(self.delivery.partition, self.delivery.offset, self.delivery.timestamp_ms)

    @property
    def handler(self) -> str:
        """Whose message it was; `-` if nobody knows."""
        return self.delivery.handler or "-"

    @property
    def message(self) -> str:
        """The message and its handler: the same for the letters of all its deaths."""
        return f"{self.delivery.origin}/{self.delivery.origin.timestamp_ms}/{self.handler}"

    @property
    def reason(self) -> str:
        """Why it is dead, in one of our words or in the handler's."""
        return self.fields.get("ackwise-reason", "")

    @property
    def dropped(self) -> frozenset[str]:
        """What was left out, since it was too large: `value`, `headers`, `key`."""
        return frozenset(self.fields.get("ackwise-dropped", "").split())

    @property
    def replays(self) -> int:
        """The number of the redrive of which it died; 0 if it died of none."""
        found = _NUMBER.fullmatch(self.delivery.replay_id or b"")
        return 0 if found is None else int(found[1])

    @property
    def line(self) -> str:
        """`file:line` where its exception was raised, as it was then; empty without one."""
        frame = _frame(self.fields.get("ackwise-error-traceback", ""))
        return "" if frame is None else f"{frame[0]}:{frame[1]}"

    @property
    def cause(self) -> Cause:
        """Why it is dead; without the line, which each release moves."""
        error, frame = self.fields.get("ackwise-error-class", ""), _frame(self.fields.get("ackwise-error-traceback", ""))
        place = "" if frame is None else f"{'/'.join(PurePath(frame[0]).parts[-_PARTS:])}:{frame[2]}"
        reason = self.problem or self.reason
        digest = hashlib.blake2b("\0".join((reason, error, place)).encode("utf-8", "surrogatepass"), digest_size=4)
        return Cause(digest.hexdigest(), reason, error, place)


def read_letter(record: Delivery, group: str) -> Letter:
    """`record` of the dead-letter topic of `group`. One that this group did not write has a `problem`."""
    try:
        return Letter(*parse_letter(record, group), record)
    except (ForeignCopy, OtherWire) as error:
        return Letter(record, {}, record, str(error))


def _frame(traceback: str) -> tuple[str, str, str] | None:
    """File, line and function of the innermost frame of the user's code, or of any code; `None` without a frame."""
    frames: list[tuple[str, str, str]] = _FRAME.findall(traceback)
    own = [frame for frame in frames if not frame[0].startswith("<") and not any(part in frame[0] for part in _INSTALLED)]
    return next(reversed(own or frames), None)
