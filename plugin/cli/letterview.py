"""How dead letters are shown: as tables, or as what JSON can say. Nothing of a message reaches a terminal as a command to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape

from ackwise.plugin.cli.console import new_table

if TYPE_CHECKING:
    from rich.table import Table

    from ackwise.plugin.deadletters.causes import Causes
    from ackwise.plugin.deadletters.letter import Letter
    from ackwise.plugin.deadletters.letterstate import LetterState

__all__ = ["bytes_text", "cause_facts", "causes_table", "letter_facts", "letters_table", "plain", "shown"]

#: Characters of a text in a cell of a table, and of a value.
_CELL: Final = 160
_VALUE: Final = 4000


def plain(text: str, limit: int = _CELL) -> str:
    """`text` in one line, cut, with what does not print spelled out: a terminal would obey it."""
    cut = text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit} more"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)


def shown(text: str, limit: int = _CELL) -> str:
    """As `plain`, for a console that takes markup."""
    return escape(plain(text, limit))


def bytes_text(given: bytes | None, limit: int = _VALUE) -> str | None:
    """Bytes as a text where they are one, and as 0x and hex digits where they are not; cut."""
    if given is None:
        return None
    try:
        text = given.decode()
    except UnicodeDecodeError:
        text = f"0x{given[:limit].hex()}"
    return text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit} more"


def causes_table(causes: Causes) -> Table:
    """Causes with their counts, the most frequent first."""
    now = time.time() * 1000
    table = new_table("cause", "reason", "raised", "handler", "topic", "open", "redriven", "dropped", "oldest", "newest", "letter")
    for kind, tally in causes.ordered:
        cause, states = kind.cause, tally.states
        table.add_row(
            *map(shown, (cause.fingerprint, cause.reason, f"{cause.error} {cause.place}".strip() or "–", kind.handler, kind.topic)),
            *(f"{states[state]:,}" for state in ("open", "redriven", "dropped")),
            _age(now - tally.oldest_ms), _age(now - tally.newest_ms), tally.example,
        )  # fmt: skip
    return table


def letters_table(causes: Causes) -> Table:
    """Letters one by one, the newest first."""
    table = new_table("letter", "time", "state", "cause", "reason", "handler", "message", "attempts", "key")
    for letter, state in causes.newest:
        delivery = letter.delivery
        cells = letter.cause.fingerprint, letter.problem or letter.reason, letter.handler, str(delivery.origin)
        key = bytes_text(delivery.key, _CELL)
        table.add_row(
            str(letter.id),
            _time(letter.id.timestamp_ms, "seconds"),
            _state(state),
            *map(shown, cells),
            str(delivery.attempt),
            shown(key or "–"),
        )
    return table


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
