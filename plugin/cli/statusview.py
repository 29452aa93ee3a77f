"""What `ackwise status` shows: tables for people, and facts as JSON has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.text import Text

from ackwise.plugin.cli.console import new_table
from ackwise.plugin.cli.letterview import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ackwise.plugin.status.standing import PartitionStanding, Standing

__all__ = ["facts", "findings_of", "sentence", "tables"]

#: Characters of a name that is somebody else's choice.
_NAME: Final = 250

_UNKNOWN: Final = "as of the last commits; what only workers know, such as messages in hand and open breakers, is not shown"


def findings_of(standing: Standing) -> list[str]:
    """What needs somebody."""
    from ackwise.plugin.status.standing import findings

    return findings(standing)


def facts(standing: Standing) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "group": standing.group,
        "as_of": "last commit",
        "state": standing.state,
        "members": list(standing.members),
        "relays": standing.relays,
        "lag": standing.lag,
        "partitions": [each._asdict() for each in standing.partitions],
        "levels": [each._asdict() for each in standing.levels],
        "dead_letters": None if standing.letters is None else standing.letters._asdict(),
        "paused": [each._asdict() for each in standing.paused],
        "findings": findings_of(standing),
    }


def tables(standing: Standing) -> RenderableType:
    """For people."""
    return Group(*_parts(standing))


def sentence(text: str) -> Text:
    """One sentence as it is."""
    return Text(plain(text, 1_000))


def _parts(standing: Standing) -> Iterator[RenderableType]:
    workers, relays = _several(len(standing.members), "worker"), _several(standing.relays, "relay")
    yield sentence(f"group {standing.group}: {standing.state}, {workers}, {relays}, lag {standing.lag}")
    table = new_table("partition", "owner", "watermark", "lag", "done ahead", "oldest", "waiting")
    for each in standing.partitions:
        table.add_row(*map(sentence, _row(each)))
    yield table
    if pending := [each for each in standing.levels if each.pending]:
        levels = new_table("delay level", "pending")
        for level in pending:
            levels.add_row(sentence(level.level), str(level.pending))
        yield levels
    if (letters := standing.letters) is not None:
        newest = "" if letters.newest_age is None else f", the newest {_duration(letters.newest_age)} old"
        yield sentence(f"dead letters: {letters.letters}, of which {letters.open} are open{newest}")
    for finding in findings_of(standing):
        yield Text.assemble(("! ", "red"), plain(finding, 1_000))
    yield Text(_UNKNOWN, style="dim")


def _row(each: PartitionStanding) -> tuple[str, ...]:
    return (
        f"{each.topic}/{each.partition}",
        "nobody" if each.owner is None else plain(each.owner, _NAME),
        "-" if each.committed is None else str(each.committed),
        str(each.lag),
        str(each.done_ahead),
        "-" if each.age is None else _duration(each.age),
        "; ".join(_why(each)),
    )


def _why(each: PartitionStanding) -> Iterator[str]:
    for what in each.paused:
        yield f"{what} is paused by command"
    if each.due_in is not None:
        attempts = _several(each.waiting_attempts, "attempt")
        yield f"{_several(each.waiting, 'message')} in place, tried again in {_duration(each.due_in)} after {attempts}"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    """In the largest unit of which there is one."""
    unit, size = next((each for each in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= each[1]), ("s", 1))
    return f"{round(seconds) // size} {unit}"
