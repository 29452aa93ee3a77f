"""What is shown of dead letters, on a terminal and on a page alike: texts in tables, and facts as JSON has them. Pure."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any, Final

from ackwise.middleware.decoding import decoded
from ackwise.middleware.plaintext import bytes_text, cut
from ackwise.middleware.run import Run
from ackwise.middleware.usercode import Returned, called, class_name, plain, shown
from ackwise.plugin.deadletters.causes import Causes, Kind, Tally
from ackwise.plugin.deadletters.letter import Letter
from ackwise.plugin.deadletters.letterstate import LetterState
from ackwise.plugin.deadletters.place import Place

__all__ = [
    "CAUSE_COLUMNS", "LETTER_COLUMNS", "cause_facts", "cause_row", "contents", "letter_facts", "letter_row", "remarks",
]  # fmt: skip

CAUSE_COLUMNS: Final = "cause", "reason", "raised", "handler", "topic", "open", "redriven", "dropped", "oldest", "newest", "letter"
LETTER_COLUMNS: Final = "letter", "time", "state", "cause", "reason", "handler", "message", "attempts", "key"

#: Bytes of a key in a row, and characters of a decoded value.
_KEY: Final = 160
_DECODED: Final = 4000


def cause_row(kind: Kind, tally: Tally, now_ms: float) -> tuple[str, ...]:
    """The cells of `CAUSE_COLUMNS`, which may hold any character."""
    cause, states = kind.cause, tally.states
    return (
        *(cause.fingerprint, cause.reason, f"{cause.error} {cause.place}".strip() or "–", kind.handler, kind.topic),
        *(f"{states[state]:,}" for state in ("open", "redriven", "dropped")),
        *(_age(now_ms - tally.oldest_ms), _age(now_ms - tally.newest_ms), tally.example),
    )


def letter_row(letter: Letter, state: LetterState | None) -> tuple[str, ...]:
    """The cells of `LETTER_COLUMNS`, which may hold any character."""
    delivery = letter.delivery
    return (
        *(str(letter.id), _time(letter.id.timestamp_ms, "seconds"), _state(state), letter.cause.fingerprint),
        *(letter.problem or letter.reason, letter.handler, str(delivery.origin), str(delivery.attempt)),
        bytes_text(delivery.key, _KEY) or "–",
    )


def cause_facts(causes: Causes) -> list[dict[str, Any]]:
    """Causes with their counts, as JSON has them."""
    return [
        {
            "cause": kind.cause.fingerprint,
            "reason": kind.cause.reason,
            "error": kind.cause.error,
            "place": kind.cause.place,
            "handler": kind.handler,
            "topic": kind.topic,
            **{state: tally.states[state] for state in ("open", "redriven", "dropped")},
            "oldest": _time(tally.oldest_ms),
            "newest": _time(tally.newest_ms),
            "letter": tally.example,
        }
        for kind, tally in causes.ordered
    ]


def letter_facts(letter: Letter, state: LetterState | None) -> dict[str, Any]:
    """One letter without value and headers, as JSON has it."""
    delivery, cause = letter.delivery, letter.cause
    return {
        "letter": str(letter.id),
        "time": _time(letter.id.timestamp_ms),
        "state": "open" if state is None else state.state,
        "redriven": 0 if state is None else state.replays,
        "cause": cause.fingerprint,
        "reason": cause.reason,
        "error": cause.error,
        "place": cause.place,
        "problem": letter.problem,
        "handler": letter.handler,
        "message": str(delivery.origin),
        "attempts": delivery.attempt,
        "replay": None if delivery.replay_id is None else delivery.replay_id.decode("utf-8", "backslashreplace"),
        "dropped": sorted(letter.dropped),
        "key": bytes_text(delivery.key),
    }


def remarks(causes: Causes, unreadable: int, place: Place) -> list[str]:
    """What else is to be said of a listing, a sentence each. `unreadable`: so many states can't be read."""
    foreign = causes.count("foreign")
    return [
        *([f"{foreign} records were not written by this group, or can't be read; they do not count as open"] if foreign else ()),
        *([f"{unreadable} records of {place.state_topic} can't be read, so some states may be missing"] if unreadable else ()),
    ]


def contents(place: Place, letter: Letter, *, with_traceback: bool) -> dict[str, Any]:
    """What else is in a letter, and what to call next."""
    delivery, fields = letter.delivery, letter.fields
    return {
        "message_text": fields.get("ackwise-error-message", ""),
        "line": letter.line,
        "traceback": fields.get("ackwise-error-traceback", "") if with_traceback else "",
        "headers": [[name, bytes_text(value)] for name, value in delivery.headers],
        "value_bytes": None if delivery.value is None else len(delivery.value),
        "value": bytes_text(delivery.value),
        "decoded": _decoded(place, letter),
        "story": f"ackwise why {shlex.quote(str(delivery.origin))} {_events(place)}",
    }


def _events(place: Place) -> str:
    """The folder of the app's events, or what stands for it."""
    policy = None if place.app is None else place.app.events
    return shlex.quote(policy.sink) if policy is not None and isinstance(policy.sink, str) else "EVENTS"


def _decoded(place: Place, letter: Letter) -> str | None:
    """The value as its handler gets it, or why it can't be decoded; nothing where nobody knows how."""
    agents = () if place.app is None else place.app.agents
    agent = next((agent for agent in agents if agent.name == letter.handler), None)
    if agent is None or "value" in letter.dropped:
        return None
    if agent.decodes_async:
        return "not shown: its decoder is asynchronous"
    values, bad = decoded(Run.of(letter.delivery), agent)  # this letter may be dead of its decoder
    for raised in bad.values():
        return f"{class_name(raised.error)}: {shown(raised.error)}"
    text = called(repr, values[0])
    if isinstance(text, Returned):
        return cut(str(plain(text.value)), _DECODED)
    return f"not shown: {class_name(text.error)} in the __repr__ of {class_name(values[0])}"


def _state(state: LetterState | None) -> str:
    return "open" if state is None else state.state if state.replays < 2 else f"{state.state} ×{state.replays}"


def _age(milliseconds: float) -> str:
    """In the largest unit of which there is one."""
    seconds = max(0, round(milliseconds / 1000))
    unit, size = next((each for each in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= each[1]), ("s", 1))
    return f"{seconds // size}{unit}"


def _time(milliseconds: int, precision: str = "milliseconds") -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec=precision)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
