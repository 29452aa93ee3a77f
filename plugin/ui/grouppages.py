"""The pages of a group: how it stands, its dead letters by their causes, and each letter, as the commands show them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.reading import list_letters, look_up
from ackwise.plugin.deadletters.selection import Selection
from ackwise.plugin.deadletters.shown import CAUSE, causes_table, contents, letter_facts, letters_table, remarks
from ackwise.plugin.pages.table import Cell, Table
from ackwise.plugin.status.looking import look_at
from ackwise.plugin.status.shown import shown
from ackwise.plugin.status.standing import APP, GROUP
from ackwise.plugin.ui.page import Leaf, Named, Page
from ackwise.plugin.ui.seen import Seen, SeenByName

__all__ = ["letter_page", "letters_page", "status_page"]

#: Letters one by one, at most.
_LETTERS: Final = 100

_ID: Final = re.compile(r"\d{1,9}/\d{1,18}", re.ASCII)

#: Lines of a traceback, and headers that are shown.
_LINES: Final = 200
_HEADERS: Final = 100

Facts = dict[str, Any]
"""As `ackwise dlq show --json` has them."""

#: What has a part of its own below the other facts.
_APART: Final = ("headers", "value", "decoded", "traceback", "story")


def status_page(place: Place, named: Named) -> Page:
    """The page at `/`."""
    seen = Seen(lambda: look_at(place))

    async def answer(query: Mapping[str, str]) -> Leaf:
        sight = await seen.now()
        found = None if sight.value is None else shown(sight.value)
        findings = [] if found is None else [(each.sentence, each.command and named.command(each.command)) for each in found.findings]
        same = named.command(("status", GROUP))
        values = {"problem": sight.problem, "as_of": sight.as_of, "found": found, "findings": findings, "same": same}
        return Leaf(place.group, "status.html", values)

    return Page("/", answer, "Status")


def letters_page(place: Place, named: Named) -> Page:
    """The page at `/letters`, and with `?cause=` that of one cause."""
    seen = SeenByName(lambda cause: list_letters(place, Selection(cause=cause or None, again=True), _LETTERS))

    def redrive(cause: str) -> str:
        return named.command(("dlq", "redrive", APP, "--cause", cause))

    async def answer(query: Mapping[str, str]) -> Leaf:
        cause = query.get("cause", "")
        if cause and CAUSE.fullmatch(cause) is None:
            raise ConfigurationError("no cause has this name; the page of dead letters links to each")
        sight = await seen.now(cause)
        same = ("dlq", "list", GROUP, *(("--letters", "--cause", cause) if cause else ()))
        values: dict[str, Any] = {"problem": sight.problem, "causes": None, "same": named.command(same)}
        if sight.value is not None:
            causes, unreadable = sight.value
            values |= {
                "summary": f"{causes.count('open'):,} open in {place.names.dead_letter}, {sight.as_of}",
                "remarks": remarks(causes, unreadable, place),
                "causes": causes_table(causes, time.time() * 1000, redrive),
                "letters": letters_table(causes),
            }
        return Leaf(f"Dead letters of cause {cause}" if cause else "Dead letters", "letters.html", values)

    return Page("/letters", answer, "Dead letters")


def letter_page(place: Place, named: Named) -> Page:
    """The page at `/letter?id=PARTITION/OFFSET`."""
    seen = SeenByName(lambda letter: _look(place, letter))

    async def answer(query: Mapping[str, str]) -> Leaf:
        letter = query.get("id", "")
        if _ID.fullmatch(letter) is None:
            raise ConfigurationError("no dead letter is named; the page of dead letters links to each")
        sight = await seen.now(letter)
        values = {"problem": sight.problem, "letter": sight.value, **({} if sight.value is None else _values(sight.value, letter, named))}
        return Leaf(f"Dead letter {letter}", "letter.html", values)

    return Page("/letter", answer)


async def _look(place: Place, letter: str) -> Facts:
    partition, offset = map(int, letter.split("/"))
    found = await look_up(place, partition, offset)
    if found is None:
        raise ConfigurationError(f"there is no letter {letter} in {place.names.dead_letter!r}; it may have expired")
    return letter_facts(*found) | await asyncio.to_thread(contents, place, found[0], with_traceback=True)  # a decoder may take its time


def _values(facts: Facts, letter: str, named: Named) -> Facts:
    message, again = facts["message"], [] if facts["state"] == "open" else ["--again"]
    headers = [(name or "", "none" if value is None else Cell(value, "block")) for name, value in facts["headers"][:_HEADERS]]
    given = {name: value for name, value in facts.items() if name not in _APART and value not in (None, "", [], {})}
    return {
        "story": f"/story?message={quote(message, safe='')}",
        "why": named.story(message),
        "redrive": named.command(("dlq", "redrive", APP, letter, *again)),
        "drop": named.command(("dlq", "drop", GROUP, letter, *again)),
        "show": named.command(("dlq", "show", GROUP, letter)),
        "facts": {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in given.items()},
        "headers": Table("As the producer wrote them", ("name", "value"), headers),
        "more_headers": len(facts["headers"]) - _HEADERS,
        "lines": facts["traceback"].splitlines()[-_LINES:],
    }
