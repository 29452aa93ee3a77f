"""`Letter`: a record of a dead-letter topic, its states, its selection by a command, and counts by cause. Pure.

The compacted topic `<group>.dlq.state` keeps the states: redriven or dropped. Counts by cause take bounded memory.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

from ackwise.middleware.message.message import Delivery
from ackwise.middleware.message.wire import ForeignCopy, OtherWire, parse_letter

#: How the replay id of a redriven message starts; its number follows.
REPLAY: Final = "redrive-"
_NUMBER: Final = re.compile(rb"redrive-(\d{1,9})")

#: A frame of a traceback, also of one that is drawn inside of a group of exceptions.
_FRAME: Final = re.compile(r'^[ |]*File "([^"\n]*)", line (\d+), in ([^\n]*)$', re.MULTILINE)

#: Files that are not user code, in forward slashes.
_INSTALLED: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "/ackwise/middleware/", "/ackwise/plugin/")

#: Folders of a file that make a place known, whatever it is installed below.
_PARTS: Final = 2


class LetterId(NamedTuple):
    """What names a dead letter, also once its topic was recreated."""

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
    """As it lies in its topic, our headers included."""
    problem: str = ""
    """Why it can't be read as a letter of this group, if so."""

    @property
    def id(self) -> LetterId:
        """What names it."""
        return LetterId(self.delivery.partition, self.delivery.offset, self.delivery.timestamp_ms)

    @property
    def handler(self) -> str:
        """Whose message it was; `-` if unknown."""
        return self.delivery.handler or "-"

    @property
    def message(self) -> str:
        """The message and its handler: the same for all its dead letters."""
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


_VERSION: Final = 1
_KEY: Final = re.compile(rb"(\d{1,10})/(\d{1,19})/(-1|\d{1,19})")
_STATES: Final = ("redriven", "dropped")


class LetterState(NamedTuple):
    """The last word about one letter."""

    state: Literal["redriven", "dropped"]
    replays: int
    """How often it was redriven; what is dropped keeps its number."""
    at_ms: int
    message: str
    """As `Letter.message`: another letter of the same message goes on counting."""


def encode_state(letter: LetterId, state: LetterState) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    key = b"%d/%d/%d" % letter
    return key, json.dumps({"version": _VERSION, **state._asdict()}).encode()


def decode_state(key: bytes | None, value: bytes | None) -> tuple[LetterId, LetterState | None]:
    """What a record says; `None` takes back what was said. Raises `ValueError` for what Ackwise did not write."""
    found = _KEY.fullmatch(key or b"")
    if found is None:
        raise ValueError("its key is not PARTITION/OFFSET/TIMESTAMP of a dead letter")
    letter = LetterId(*(int(part) for part in found.groups()))
    return letter, None if value is None else _state(value)


def _state(value: bytes) -> LetterState:
    try:
        said: Any = json.loads(value)
        version, state, replays, at_ms, message = (said[name] for name in ("version", *LetterState._fields))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("its value is not what Ackwise writes there") from None
    fits = state in _STATES and type(replays) is int and 0 <= replays <= 10**9 and type(at_ms) is int and isinstance(message, str)
    if version != _VERSION or not fits:
        raise ValueError("its value is not what this Ackwise writes there")
    return LetterState(state, replays, at_ms, message)


@dataclass(slots=True)
class States:
    """The states of dead letters. Grows with those that were redriven or dropped."""

    letters: dict[LetterId, LetterState] = field(default_factory=dict)
    unreadable: int = 0
    """Records that Ackwise did not write."""
    _replays: dict[str, int] = field(default_factory=dict)

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record of the topic; a later one wins."""
        try:
            letter, state = decode_state(key, value)
        except ValueError:
            self.unreadable += 1
            return
        if state is None:
            self.letters.pop(letter, None)
        else:
            self.note([(letter, state)])

    def note(self, said: Iterable[tuple[LetterId, LetterState]]) -> None:
        """Take in what was written just now."""
        for letter, state in said:
            self.letters[letter] = state
            self._replays[state.message] = max(self._replays.get(state.message, 0), state.replays)

    def of(self, letter: Letter) -> LetterState | None:
        """The last word about it; `None` for one that is open."""
        return self.letters.get(letter.id)

    def next_replay(self, letter: Letter) -> tuple[int, bytes]:
        """Number and replay id of its next redrive.

        Letters of the same death have the same id, such as two of which one was written again after a crash: the store lets one of
        them run. A letter that was sent before goes on behind every redrive of its message that is known.
        """
        state = self.of(letter)
        is_sent = state is not None and state.replays > 0
        number = (max(self._replays.get(letter.message, 0), letter.replays) if is_sent else letter.replays) + 1
        return number, f"{REPLAY}{number}".encode()


@dataclass(frozen=True, slots=True)
class Selection:
    """What is given must hold all together; what is `None` or empty lets every letter through. Times are epoch milliseconds."""

    cause: str | None = None
    """The fingerprint, or its first digits."""
    handler: str | None = None
    topic: str | None = None
    """The origin topic."""
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Letters older than this."""
    ids: frozenset[tuple[int, int]] = frozenset()
    """Partitions and offsets of dead letters."""
    again: bool = False
    """Also those that were redriven or dropped before."""

    def takes(self, letter: Letter, state: LetterState | None) -> bool:
        """Whether the letter is meant."""
        return (self.again or state is None) and self._is_of(letter) and self._is_when(letter.id.timestamp_ms)

    async def taken(self, letters: AsyncIterator[Letter], states: States) -> AsyncIterator[Letter]:
        """Those of `letters` that are meant."""
        async for letter in letters:
            if self.takes(letter, states.of(letter)):
                yield letter

    def _is_of(self, letter: Letter) -> bool:
        delivery = letter.delivery
        return (
            (not self.ids or letter.id[:2] in self.ids)
            and self.handler in (None, letter.handler)
            and self.topic in (None, delivery.origin.topic)
            and (self.key is None or self.key == delivery.key)
            and (self.cause is None or letter.cause.fingerprint.startswith(self.cause))
        )

    def _is_when(self, timestamp_ms: int) -> bool:
        return (self.since_ms is None or self.since_ms <= timestamp_ms) and (self.until_ms is None or timestamp_ms < self.until_ms)


#: Kinds that are counted apart: a reason is any text of a handler, and there may be as many as dead letters.
_KINDS: Final = 1000

#: What stands for all that came later.
_OTHERS: Final = Cause("others", "more causes than are counted apart", "", "")


@dataclass(frozen=True, slots=True)
class Kind:
    """What dead letters have in common: a cause, in one handler, of one origin topic."""

    cause: Cause
    handler: str
    topic: str


@dataclass(slots=True)
class Tally:
    """Letters of one kind. Times are epoch milliseconds."""

    states: Counter[str] = field(default_factory=Counter)
    """How many are `open`, `redriven` or `dropped`, and how many are `foreign`: they belong to another group."""
    oldest_ms: int = 2**63
    newest_ms: int = -(2**63)
    example: str = ""
    """The newest letter, as `ackwise dlq show` takes it."""

    def add(self, letter: Letter, state: LetterState | None) -> None:
        """Count a letter."""
        at = letter.id.timestamp_ms
        self.states[state.state if state is not None else "foreign" if letter.problem else "open"] += 1
        self.oldest_ms = min(self.oldest_ms, at)
        if at >= self.newest_ms:
            self.newest_ms, self.example = at, str(letter.id)


@dataclass(slots=True)
class Causes:
    """All dead letters by their kinds, and the newest `most` of them one by one, without values and headers."""

    most: int = 0
    kinds: dict[Kind, Tally] = field(default_factory=dict)
    _newest: list[tuple[int, int, int, Any]] = field(default_factory=list)

    def add(self, letter: Letter, states: States) -> None:
        """Count a letter."""
        state = states.of(letter)
        kind = Kind(letter.cause, letter.handler, letter.delivery.origin.topic)
        if kind not in self.kinds and len(self.kinds) >= _KINDS:
            kind = Kind(_OTHERS, "", "")
        self.kinds.setdefault(kind, Tally()).add(letter, state)
        if self.most:
            keep = heapq.heappush if len(self._newest) < self.most else heapq.heappushpop
            partition, offset, timestamp = letter.id
            light = letter.delivery._replace(value=None, headers=())  # values may be of any size
            keep(self._newest, (timestamp, partition, offset, (replace(letter, delivery=light, record=light), state)))

    def count(self, state: str, reason: str | None = None) -> int:
        """How many dead letters are in a state; with `reason` only those of that reason."""
        return sum(tally.states[state] for kind, tally in self.kinds.items() if reason in (None, kind.cause.reason))

    @property
    def newest(self) -> list[tuple[Letter, LetterState | None]]:
        """The newest dead letters with their states, the newest first."""
        return [found for *_, found in sorted(self._newest, key=lambda each: each[:3], reverse=True)]

    @property
    def ordered(self) -> list[tuple[Kind, Tally]]:
        """The most frequent open ones first."""
        return sorted(self.kinds.items(), key=lambda each: (-each[1].states["open"], -each[1].states.total(), each[0].cause))
