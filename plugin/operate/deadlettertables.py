"""What is shown of dead letters, on a terminal and on a page alike: texts in tables, and facts as JSON has them. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ackwise.middleware.log import bytes_text, cut
from ackwise.middleware.message.disposition import Reason
from ackwise.middleware.pipeline.decoding import decoded
from ackwise.middleware.runs.run import Run
from ackwise.middleware.usercode import Returned, called, class_name, plain, shown
from ackwise.plugin.operate.deadletter import Cause, Causes, Letter, LetterState
from ackwise.plugin.operate.deadlettertopics import Place
from ackwise.plugin.operate.table import Cell, Table, Value, command, count, link

#: What names a cause; what stands for many causes has another name.
CAUSE: Final = re.compile(r"[0-9a-f]{8}")

#: Bytes of a key in a row, and characters of a decoded value.
_KEY: Final = 160
_DECODED: Final = 4000


def causes_table(causes: Causes, now_ms: float, redrive: Callable[[Cause], str] | None = None) -> Table:
    """Causes with their counts, the most frequent first. `redrive`: the command that sends the letters of one again, for a page."""
    columns = "cause", "reason", "raised", "handler", "topic", "open", "redriven", "dropped", "oldest", "newest", "letter"
    rows = list[Sequence[Value] | Cell]()
    for kind, tally in causes.ordered:
        cause, states = kind.cause, tally.states
        is_one = CAUSE.fullmatch(cause.fingerprint) is not None
        rows.append(
            (
                link(f"/letters?cause={cause.fingerprint}", cause.fingerprint) if is_one else cause.fingerprint,
                *(cause.reason, f"{cause.error} {cause.place}".strip() or "–", kind.handler, kind.topic),
                *(count(states[state]) for state in ("open", "redriven", "dropped")),
                *(_age(now_ms - tally.oldest_ms), _age(now_ms - tally.newest_ms), _link(tally.example)),
            )
        )
        if redrive is not None and is_one and states["open"]:
            rows.append(command(redrive(cause), "send them again: "))
    return Table("What they died of, the most frequent first", columns, rows)


def letters_table(causes: Causes) -> Table:
    """Letters one by one, the newest first."""
    columns = "letter", "time", "state", "cause", "reason", "handler", "message", "attempts", "key"
    rows = [
        (
            *(_link(str(letter.id)), _time(letter.id.timestamp_ms, "seconds"), _state(state), letter.cause.fingerprint),
            *(letter.problem or letter.reason, letter.handler, str(letter.delivery.origin), letter.delivery.attempt),
            bytes_text(letter.delivery.key, _KEY) or "–",
        )
        for letter, state in causes.newest
    ]
    return Table(f"At most {causes.most}", columns, rows)


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
    """The sentences under a listing. `unreadable`: how many states can't be read."""
    foreign, expired = causes.count("foreign"), causes.count("open", Reason.EXPIRED)
    return [
        *([f"{expired} of the open dead letters expired before they ran; redrive sends them with --expired only"] if expired else ()),
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
    """The value as its handler gets it, or why it can't be decoded; nothing where its decoder is unknown."""
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


def _link(letter: str) -> Cell:
    return link(f"/letter?id={letter}", letter)


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
