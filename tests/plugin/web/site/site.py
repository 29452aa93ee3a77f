"""A site of pages, asked as a browser asks, and texts that would do harm on one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from tests.plugin.operate.deadletters.letters import failure, letter

from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.operate.deadlettertopics import Place
from ackwise.plugin.web.oncallsite import Access, letter_page, letters_page, site, status_page
from ackwise.plugin.web.pages import Named, Page

#: Markup, quotes, a command of a shell and of a terminal, marks that turn a line around, and what no font has.
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&;$(reboot)`\x1b[31m\x00\n\u202eevil\u2066\ufffe\U000e0001 עברית"


class Document(HTMLParser):
    """What a browser would make of a page: its tags, its attributes and its text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.commands: list[str] = []
        self.text = ""
        self._in_command = self._in_style = False
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_style = tag == "style"
        given = dict(attrs)
        self.links += [value for name, value in attrs if name in ("href", "src", "action") and value]
        self.handlers += [name for name in given if name.startswith("on") or name == "style"]
        self._in_command = tag == "code" and given.get("class") == "command"
        if self._in_command:
            self.commands.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_command = self._in_command and tag != "code"
        self._in_style = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._in_style else data
        if self._in_command:
            self.commands[-1] += data


class Site:
    """Asks for pages."""

    def __init__(self, client: TestClient[web.Request, web.Application]) -> None:
        self.client = client

    async def get(self, path: str, code: int = 200, **headers: str) -> str:
        async with self.client.get(path, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == code, text
            return text

    async def page(self, path: str, code: int = 200) -> Document:
        return Document(await self.get(path, code))


@asynccontextmanager
async def opened(pages: Sequence[Page], *, token: str | None = None, said: list[str] | None = None) -> AsyncIterator[Site]:
    """The site of the group `billing`; `said` gets what goes to the terminal."""
    app = site("billing", pages, Access(token), (said if said is not None else []).append)
    async with TestClient(TestServer(app)) as client:
        yield Site(client)


def group_pages(place: Place, named: Named | None = None) -> list[Page]:
    """The pages that need no events."""
    named = named or Named("billing")
    return [status_page(place, named), letters_page(place, named), letter_page(place, named)]


def hostile_letters() -> list[Copy]:
    """Letters with harm in each field, and one of a megabyte."""
    header: Headers = ((HOSTILE, HOSTILE.encode()), ("bytes", b"\xff\xfe"), ("none", None))
    why = failure(HOSTILE, HOSTILE.replace("\n", ""), 7, HOSTILE)
    return [
        letter(1, handler=HOSTILE, topic=HOSTILE, key=HOSTILE.encode(), value=HOSTILE.encode(), headers=header, reason=HOSTILE, why=why),
        letter(2, key=b"\xff" * 5000, value=b"<b>" * 333_000, headers=(("large", b"<i>" * 2000),) * 150),
        letter(3, key=None, value=None),
    ]
