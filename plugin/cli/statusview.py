"""How `ackwise status` is printed on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from ackwise.middleware.plaintext import plain
from ackwise.plugin.cli.console import new_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ackwise.plugin.status.standing import Standing

__all__ = ["sentence", "tables"]


def tables(standing: Standing) -> RenderableType:
    """For people."""
    return Group(*_parts(standing))


def sentence(text: str) -> Text:
    """One sentence as it is."""
    return Text(plain(text, 1_000))


def _parts(standing: Standing) -> Iterator[RenderableType]:
    from ackwise.plugin.status.shown import shown  # here, since a help needs none of it

    found = shown(standing)
    yield sentence(found.headline)
    for each in found.tables:
        table = new_table(*each.columns)
        for row in each.rows:
            table.add_row(*map(sentence, row))
        yield table
    if found.letters:
        yield sentence(found.letters)
    for finding in found.findings:
        yield Text.assemble(("! ", "red"), plain(finding.sentence, 1_000))
    yield Text(found.unknown, style="dim")
