"""The site for whoever is on call: its pages with their navigation, for whoever the gate lets in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.pages.render import HTML, Answer, document
from ackwise.plugin.pages.server import application, serving
from ackwise.plugin.ui.gate import Gate
from ackwise.plugin.ui.page import Leaf, Page
from ackwise.plugin.ui.seen import PATIENCE

__all__ = ["serve", "site"]

#: Seconds that a connection lasts: a page waits for brokers, and what it found is on its way to a slow client then.
_LONGEST: Final = 2 * PATIENCE

_READ_ALONE: Final = "these pages can be read, and nothing else; use the commands that they show"
_MISSING: Final = "there is no page of this name; the links above lead to those that are there"


def site(group: str, pages: Sequence[Page], gate: Gate, say: Callable[[str], None]) -> web.Application:
    """Answers for `pages`; what went wrong in a page, and is no sentence of ours, goes to `say`."""
    by_path = {page.path: page for page in pages}

    def draw(request: web.Request, leaf: Leaf) -> Answer:
        text = document(leaf.template, group=group, title=leaf.title, pages=pages, path=request.path, **leaf.values)
        return Answer(text.encode(), HTML, leaf.status)

    def answering(page: Page) -> Callable[[web.Request], Awaitable[Answer]]:
        async def answer(request: web.Request) -> Answer:
            found = await page.answer(dict(request.query))
            return found if isinstance(found, Answer) else draw(request, found)

        return answer

    def failed(request: web.Request, error: Exception) -> Answer:
        page = by_path[request.path]
        if isinstance(error, AckwiseError):
            return draw(request, _sentence(page.name or "Not found", str(error), 404))
        say(f"the page {page.path} failed: {type(error).__name__} at {where_raised(error)}; the other pages go on")
        return draw(request, _sentence("This page failed", "this page failed; the terminal of ackwise ui says where", 500))

    def missing(request: web.Request, status: int) -> Answer:
        return draw(request, _sentence("Not allowed", _READ_ALONE, 405) if status == 405 else _sentence("No such page", _MISSING, 404))

    def refusal(request: web.Request) -> Answer | None:
        """In words alone: whoever is not let in learns nothing of the group."""
        refused = gate.refusal(request.headers.get("Host", ""), request.headers.get("Authorization", ""))
        if refused is None:
            return None
        challenge = 'Basic realm="ackwise ui", charset="UTF-8"' if refused.status == 401 else ""
        return Answer(f"{refused.sentence}\n".encode(), status=refused.status, challenge=challenge)

    return application({page.path: answering(page) for page in pages}, failed=failed, missing=missing, refusal=refusal)


async def serve(listening: socket.socket, app: web.Application, stop: asyncio.Event) -> None:
    """Answer what comes to `listening` until `stop` is set."""
    async with serving(app, listening, _LONGEST):
        await stop.wait()


def _sentence(title: str, sentence: str, status: int) -> Leaf:
    return Leaf(title, "sentence.html", {"sentence": sentence}, status)
