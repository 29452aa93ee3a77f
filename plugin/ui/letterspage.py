"""The page of dead letters by their causes, as `ackwise dlq list` has it, and of one cause the letters one by one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.deadletters.causes import Causes, Kind, Tally
from ackwise.plugin.deadletters.looking import list_letters
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.selection import Selection
from ackwise.plugin.deadletters.shown import CAUSE_COLUMNS, LETTER_COLUMNS, cause_row, letter_row, remarks
from ackwise.plugin.status.standing import APP, GROUP
from ackwise.plugin.ui.html import Html, alert, box, command, link, table, tag
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.page import Leaf, Page
from ackwise.plugin.ui.seen import SeenByName, Sight

__all__ = ["letters_page"]

_CAUSE: Final = re.compile(r"[0-9a-f]{8}")

#: Letters one by one, at most.
_LETTERS: Final = 100

Listing = tuple[Causes, int]


def letters_page(place: Place, named: Named) -> Page:
    """The page at `/letters`, and with `?cause=` that of one cause."""
    seen = SeenByName(lambda cause: list_letters(place, Selection(cause=cause or None, again=True), _LETTERS))

    async def answer(query: Mapping[str, str]) -> Leaf:
        cause = query.get("cause", "")
        if cause and _CAUSE.fullmatch(cause) is None:
            raise ConfigurationError("no cause has this name; the page of dead letters links to each")
        title = f"Dead letters of cause {cause}" if cause else "Dead letters"
        return Leaf(title, [*_parts(await seen.now(cause), place, named, cause)])

    return Page("/letters", answer, "Dead letters")


def _parts(sight: Sight[Listing], place: Place, named: Named, cause: str) -> Iterator[Html]:
    if sight.problem:
        yield alert(sight.problem)
    if sight.value is not None:
        causes, unreadable = sight.value
        yield tag("p", f"{causes.count('open'):,} open in {place.names.dead_letter}, {sight.as_of}")
        for sentence in remarks(causes, unreadable, place):
            yield alert(sentence, "doubt")
        yield box("Causes", _causes(causes, named))
        yield box("Letters, the newest first", _letters(causes))
    same = ("dlq", "list", GROUP, *(("--letters", "--cause", cause) if cause else ()))
    yield tag("p", "The same on a terminal: ", command(named.command(same)), class_="muted")


def _causes(causes: Causes, named: Named) -> Html:
    now_ms = time.time() * 1000
    rows = [row for kind, tally in causes.ordered for row in _cause(kind, tally, now_ms, named)]
    return table("What they died of, the most frequent first", CAUSE_COLUMNS, rows)


def _cause(kind: Kind, tally: Tally, now_ms: float, named: Named) -> Iterator[list[str | Html] | Html]:
    fingerprint, *told, example = cause_row(kind, tally, now_ms)
    is_one = _CAUSE.fullmatch(fingerprint) is not None  # or else it stands for many
    yield [link(f"/letters?cause={fingerprint}", fingerprint) if is_one else fingerprint, *told, _letter_link(example)]
    if is_one and tally.states["open"]:
        yield Html(f"send them again: {command(named.command(('dlq', 'redrive', APP, '--cause', fingerprint)))}")


def _letters(causes: Causes) -> Html:
    rows = [[_letter_link(first), *rest] for first, *rest in (letter_row(*found) for found in causes.newest)]
    return table(f"At most {_LETTERS}", LETTER_COLUMNS, rows)


def _letter_link(letter: str) -> Html:
    return link(f"/letter?id={letter}", letter)
