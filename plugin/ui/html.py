"""Markup: a text becomes part of a page by `told` alone, which cuts it, spells out what does not print, and escapes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from ackwise.middleware.plaintext import plain

__all__ = ["Html", "alert", "box", "command", "joined", "link", "listed", "table", "tag", "told"]

#: Characters of a text, such as a cell.
_TEXT: Final = 300

#: Characters of a command: what is longer could not be copied whole, and is not one.
_COMMAND: Final = 4000


#: Characters of a cell that is not folded.
_SHORT: Final = 26

_TAG: Final = re.compile(r"<[^>]*>")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Content = str | Html
"""What may be put into a tag: plain text is escaped there."""


def told(text: str, limit: int = _TEXT) -> Html:
    """`text`, which may hold any character and be of any size."""
    return text if isinstance(text, Html) else Html(escape(plain(text, limit)))


def tag(name: str, /, *content: Content, **attributes: str) -> Html:
    """An element. An attribute that Python has a word for ends with `_`; `_` inside stands for `-`."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(plain(value, _COMMAND))}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(map(told, content))}</{name}>")


def joined(parts: Iterable[Html]) -> Html:
    """One after the other."""
    return Html("\n".join(parts))


def link(target: str, *content: Content) -> Html:
    """A link to one of our own pages."""
    return tag("a", *content, href=target)


def command(words: str) -> Html:
    """A command to copy: one click selects it."""
    return tag("code", told(words, _COMMAND), class_="command")


def alert(sentence: str, tone: str = "bad") -> Html:
    """A sentence that nobody must overlook."""
    return tag("p", told(sentence, 1000), class_=f"alert {tone}", role="status")


def box(title: str, *content: Content) -> Html:
    """A part of a page under its heading."""
    return tag("section", tag("h2", title), Html("\n"), joined(map(told, content)))


def listed(entries: Sequence[Content]) -> Html:
    """A list; nothing of nothing."""
    return tag("ul", joined(tag("li", entry) for entry in entries)) if entries else Html()


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Content] | Html]) -> Html:
    """A table, each of whose rows becomes a card where the window is narrow. A row that is markup takes the whole width."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    body = joined(_row(columns, row) for row in rows) or _row(columns, Html("none"))
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", whole, class_="scroll", role="region", tabindex="0", aria_label=caption)


def _row(columns: Sequence[str], row: Sequence[Content] | Html) -> Html:
    if isinstance(row, Html):
        return tag("tr", tag("td", row, colspan=str(len(columns))))
    return tag("tr", *(_cell(column, told(cell)) for column, cell in zip(columns, row, strict=True)))


def _cell(column: str, cell: Html) -> Html:
    is_short = len(_TAG.sub("", cell)) <= _SHORT
    return tag("td", cell, data_label=column, **({"class_": "short"} if is_short else {}))
