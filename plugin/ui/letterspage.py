"""The page of dead letters by their causes, as `ackwise dlq list` has it, and of one cause the letters one by one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.deadletters.looking import list_letters
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.selection import Selection
from ackwise.plugin.deadletters.shown import CAUSE, causes_table, letters_table, remarks
from ackwise.plugin.status.standing import APP, GROUP
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.seen import SeenByName
from ackwise.plugin.ui.site import Leaf, Page

__all__ = ["letters_page"]

#: Letters one by one, at most.
_LETTERS: Final = 100


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
