"""Server of the pages for whoever is on call: GET alone, whoever the gate lets in, and every answer with the headers that keep it safe."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.ui.gate import Gate
from ackwise.plugin.ui.html import alert
from ackwise.plugin.ui.page import POLICY, Answer, File, Leaf, Page, document
from ackwise.plugin.ui.seen import PATIENCE
from ackwise.plugin.watch.connections import serving

__all__ = ["application", "serve"]

#: Seconds that a connection lasts: a page waits for brokers, and what it found is on its way to a slow client then.
_LONGEST: Final = 2 * PATIENCE

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "ackwise",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_WRONG: Final = {
    404: Leaf("No such page", [alert("there is no page of this name; the links above lead to those that are there")], 404),
    405: Leaf("Not allowed", [alert("these pages can be read, and nothing else; use the commands that they show")], 405),
}

Say = Callable[[str], None]


def application(group: str, pages: Sequence[Page], gate: Gate, say: Say) -> web.Application:
    """Answers for `pages`; what went wrong in a page, and is no sentence of ours, goes to `say`."""

    @web.middleware
    async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        refused = gate.refusal(request.headers.get("Host", ""), request.headers.get("Authorization", ""))
        if refused is not None:
            return _refused(refused.status, refused.sentence)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _response(group, _WRONG.get(error.status, _WRONG[404]), pages, request.path)

    made = web.Application(middlewares=[guard], client_max_size=1024)
    for page in pages:
        made.router.add_get(page.path, _handler(group, page, pages, say))
    return made


async def serve(listening: socket.socket, app: web.Application, stop: asyncio.Event) -> None:
    """Answer what comes to `listening` until `stop` is set."""
    async with serving(app, listening, _LONGEST):
        await stop.wait()


def _handler(group: str, page: Page, pages: Sequence[Page], say: Say) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        found: Answer
        try:
            found = await page.answer(dict(request.query))
        except AckwiseError as error:
            found = Leaf(page.name or "Not found", [alert(str(error))], 404)
        except Exception as error:  # noqa: BLE001  # a page that fails is an answer like another one, and the next one is answered
            say(f"the page {page.path} failed: {type(error).__name__} at {where_raised(error)}; the other pages go on")
            found = Leaf("This page failed", [alert("this page failed; the terminal of ackwise ui says where")], 500)
        return _response(group, found, pages, page.path)

    return answer


def _response(group: str, found: Answer, pages: Sequence[Page], path: str) -> web.Response:
    if isinstance(found, File):
        return _sent(found.body, 200, found.policy)
    return _sent(document(group, found, pages, path).encode(), found.status, POLICY)


def _refused(status: int, sentence: str) -> web.Response:
    """In words alone: whoever is not let in learns nothing of the group."""
    asking = {"WWW-Authenticate": 'Basic realm="ackwise ui", charset="UTF-8"'} if status == 401 else {}
    return web.Response(text=sentence + "\n", status=status, headers={**_HEADERS, **asking, "Content-Security-Policy": POLICY})


def _sent(body: bytes, status: int, policy: str) -> web.Response:
    headers = {**_HEADERS, "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
    return web.Response(body=body, status=status, headers=headers)
