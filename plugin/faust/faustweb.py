"""The view `/ackwise/` of a Faust worker's web server: its state, as JSON or as a page."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Final, Protocol

import faust
from faust.web import Blueprint, Request, Response, View, Web

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.faust.faustinternals import wrap_web
from ackwise.plugin.operate.state import State

#: A proxy must keep no state, and must not give the page to a client that asks for JSON.
_HEADERS: Final = {"Cache-Control": "no-store", "Vary": "Accept"}

_blueprint: Final = Blueprint("ackwise")


class Watched(Protocol):
    """Whose state is shown."""

    async def look(self) -> State:
        """The state now. Raises `AckwiseError` if there is none yet."""
        ...


@_blueprint.route("/", name="state")
class _StateView(View):
    """The state of this worker: JSON, or a page for who asks for `text/html`."""

    async def get(self, request: Request, **_: Any) -> Response:
        app: Any = self.app
        watched: Watched = app.ackwise
        try:  # in the loop of the app: with `web_in_thread` this one is another
            state = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(watched.look(), app.loop))
        except AckwiseError as error:
            return self.error(503, str(error), headers=_HEADERS)
        if "text/html" in request.headers.get("Accept", ""):
            from ackwise.plugin.web.statepage import state_page  # here, since only a page needs jinja2

            return self.html(state_page(state), headers=_HEADERS)
        return self.json(dataclasses.asdict(state), headers=_HEADERS)


def add_view(app: faust.App) -> None:
    """Have the view in the web server of `app`, which is made when it is asked for first: until then the app may be configured."""

    def with_view(web: Web) -> Web:
        web.blueprints.add("/ackwise", _blueprint)
        return web

    wrap_web(app, with_view)
