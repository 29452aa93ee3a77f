"""Letter states: what people did with dead letters, as the compacted topic `<group>.dlq.state` keeps it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from ackwise.plugin.deadletters.letter import REPLAY, Letter, LetterId

__all__ = ["LetterState", "States", "decode_state", "encode_state"]

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
    """What is known of letters. Grows with those that somebody did something with."""

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
