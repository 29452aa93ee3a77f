"""The page of one dead letter, as `ackwise dlq show` has it, with the commands that tell its story and send it again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.deadletters.looking import look_up
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.shown import contents, letter_facts
from ackwise.plugin.status.standing import APP, GROUP
from ackwise.plugin.ui.html import Html, alert, box, command, joined, link, table, tag, told
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.page import Leaf, Page
from ackwise.plugin.ui.seen import SeenByName, Sight

__all__ = ["letter_page"]

_ID: Final = re.compile(r"\d{1,9}/\d{1,18}", re.ASCII)

#: Characters of a value, lines of a traceback, and headers that are shown.
_VALUE: Final = 4200
_LINES: Final = 200
_HEADERS: Final = 100

Facts = dict[str, Any]
"""As `ackwise dlq show --json` has them."""

#: What has a part of its own below the other facts.
_APART: Final = ("headers", "value", "decoded", "traceback", "story")


def letter_page(place: Place, named: Named) -> Page:
    """The page at `/letter?id=PARTITION/OFFSET`."""
    seen = SeenByName(lambda letter: _look(place, letter))

    async def answer(query: Mapping[str, str]) -> Leaf:
        letter = query.get("id", "")
        if _ID.fullmatch(letter) is None:
            raise ConfigurationError("no dead letter is named; the page of dead letters links to each")
        return Leaf(f"Dead letter {letter}", [*_parts(await seen.now(letter), letter, named)])

    return Page("/letter", answer)


async def _look(place: Place, letter: str) -> Facts:
    partition, offset = map(int, letter.split("/"))
    found = await look_up(place, partition, offset)
    if found is None:
        raise ConfigurationError(f"there is no letter {letter} in {place.names.dead_letter!r}; it may have expired")
    return letter_facts(*found) | await asyncio.to_thread(contents, place, found[0], with_traceback=True)  # a decoder may take its time


def _parts(sight: Sight[Facts], letter: str, named: Named) -> Iterator[Html]:
    if sight.problem:
        yield alert(sight.problem)
    if sight.value is not None:
        yield from _facts(sight.value, letter, named)


def _facts(facts: Facts, letter: str, named: Named) -> Iterator[Html]:
    yield box("What to do", *_commands(facts, letter, named))
    yield box("Why it is dead", _plain_facts(facts))
    if facts["decoded"] is not None:
        yield box("Value as its handler gets it", _text(facts["decoded"]))
    yield box("Value", tag("p", "none", class_="muted") if facts["value"] is None else _text(facts["value"]))
    yield box("Headers", _headers(facts["headers"]))
    if facts["traceback"]:
        lines = facts["traceback"].splitlines()
        yield box("Traceback", tag("pre", joined(told(line) for line in lines[-_LINES:])))


def _commands(facts: Facts, letter: str, named: Named) -> Iterator[Html]:
    message = facts["message"]
    yield tag("p", link(f"/story?message={quote(message, safe='')}", "its story"), ": ", command(named.story(message)))
    if facts["problem"]:
        yield alert(facts["problem"], "doubt")
    else:
        again = [] if facts["state"] == "open" else ["--again"]
        yield tag("p", "send it again: ", command(named.command(("dlq", "redrive", APP, letter, *again))))
        yield tag("p", "or mark it, since nobody will: ", command(named.command(("dlq", "drop", GROUP, letter, *again))))
    yield tag("p", "the same on a terminal: ", command(named.command(("dlq", "show", GROUP, letter))), class_="muted")


def _plain_facts(facts: Facts) -> Html:
    given = {name: value for name, value in facts.items() if name not in _APART and value not in (None, "", [], {})}
    return tag("dl", *(part for name, value in given.items() for part in (tag("dt", name.replace("_", " ")), tag("dd", _fact(value)))))


def _fact(value: object) -> Html:
    return told(", ".join(map(str, value)) if isinstance(value, list) else str(value), 10_000)


def _headers(headers: list[list[str | None]]) -> Html:
    rows = [(told(name or ""), "none" if value is None else _text(value)) for name, value in headers[:_HEADERS]]
    more = [tag("p", f"and {len(headers) - _HEADERS} more", class_="muted")] if len(headers) > _HEADERS else []
    return joined([table("As the producer wrote them", ("name", "value"), rows), *more])


def _text(text: str) -> Html:
    return tag("pre", told(text, _VALUE))
