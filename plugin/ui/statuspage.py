"""The first page: how the whole group stands, and what in it needs somebody, as `ackwise status` has it."""

from __future__ import annotations

from collections.abc import Mapping

from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.status.looking import look_at
from ackwise.plugin.status.shown import shown
from ackwise.plugin.status.standing import GROUP
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.seen import Seen
from ackwise.plugin.ui.site import Leaf, Page

__all__ = ["status_page"]


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
