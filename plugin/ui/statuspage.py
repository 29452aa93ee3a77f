"""The first page: how the whole group stands, and what in it needs somebody, as `ackwise status` has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.status.looking import look_at
from ackwise.plugin.status.shown import ShownStatus, shown
from ackwise.plugin.status.standing import GROUP, Finding, Standing
from ackwise.plugin.ui.html import Html, alert, box, command, link, listed, table, tag, told
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.page import Leaf, Page
from ackwise.plugin.ui.seen import Seen, Sight

__all__ = ["status_page"]


def status_page(place: Place, named: Named) -> Page:
    """The page at `/`."""
    seen = Seen(lambda: look_at(place))

    async def answer(query: Mapping[str, str]) -> Leaf:
        return Leaf(place.group, [*_parts(await seen.now(), named)])

    return Page("/", answer, "Status")


def _parts(sight: Sight[Standing], named: Named) -> Iterator[Html]:
    if sight.problem:
        yield alert(sight.problem)
        rest = "Stories and books need no broker." if sight.value is None else "What follows was seen before."
        yield tag("p", rest, class_="muted")
    if sight.value is not None:
        yield from _standing(shown(sight.value), sight.as_of, named)


def _standing(found: ShownStatus, as_of: str, named: Named) -> Iterator[Html]:
    yield tag("p", told(found.headline, 1000))
    yield tag("p", as_of, class_="muted")
    yield box("What needs somebody", *_findings(found.findings, named))
    names = ["Partitions", *(each.columns[0].capitalize() for each in found.tables[1:])]
    yield box("How far it is", *(table(name, each.columns, each.rows) for name, each in zip(names, found.tables, strict=True)))
    if found.letters:
        yield tag("p", found.letters, "; ", link("/letters", "what they died of"))
    yield tag("p", found.unknown, class_="muted")
    yield tag("p", "The same on a terminal: ", command(named.command(("status", GROUP))), class_="muted")


def _findings(findings: tuple[Finding, ...], named: Named) -> Iterator[Html]:
    if not findings:
        yield tag("p", "nothing", class_="good")
    yield listed([_finding(each, named) for each in findings])


def _finding(finding: Finding, named: Named) -> Html:
    act = (Html(" "), command(named.command(finding.command))) if finding.command else ()
    return tag("span", tag("strong", told(finding.sentence, 1000), class_="bad"), *act)
