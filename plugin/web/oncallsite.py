"""`Access`: who may see the pages. Pure, but for the file of the token.

The pages of a group: how it stands, its dead letters by their causes, and each letter, as the commands show them.

The on-call web UI: its pages with their navigation, for those whom `Access` lets in.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from aiohttp import web

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.usercode import where_raised
from ackwise.plugin.operate.deadletter import Selection
from ackwise.plugin.operate.deadlettertables import CAUSE, causes_table, contents, letter_facts, letters_table, remarks
from ackwise.plugin.operate.deadlettertopics import Place, list_letters, look_up
from ackwise.plugin.operate.groupstatus import APP, GROUP, shown
from ackwise.plugin.operate.statusreader import look_at
from ackwise.plugin.operate.table import Cell, Table
from ackwise.plugin.settings.config import UI_TOKEN
from ackwise.plugin.web.lastseen import PATIENCE, Seen, SeenByName
from ackwise.plugin.web.pages import HTML, Answer, Leaf, Named, Page, document
from ackwise.plugin.web.pageserver import application, serving

#: What a token is made of, and how much of it there is at least: that many characters can't be guessed.
_FORM: Final = re.compile(r"[!-~]{16,1024}")

#: The names of this machine by which a browser on it asks; a page from elsewhere that had its name resolved to us has another one.
_LOCAL: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Access:
    """Lets in requests with `token`; without one, requests to this machine by its own name."""

    token: str | None = None

    def refusal(self, host: str, authorization: str) -> Refusal | None:
        """Return why a request with these headers is refused; `None` if it is let in."""
        if self.token is None:
            if _LOCAL.fullmatch(host) is None:
                return Refusal(403, "without a token this page is for localhost alone: ask for it as http://localhost or http://127.0.0.1")
            return None
        if not hmac.compare_digest(_given(authorization), self.token.encode()):
            return Refusal(401, "this page needs its token: as the password, or as Authorization: Bearer TOKEN")
        return None


def _given(authorization: str) -> bytes:
    """The token of a request: after `Bearer`, or the password of `Basic`, whose user may be anything."""
    scheme, _, given = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return given.strip().encode("utf-8", "surrogateescape")
        case "basic":
            try:
                return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return b""
        case _:
            return b""


def is_own_address(address: str) -> bool:
    """Whether only this machine reaches `address`, an IP address."""
    return ip_address(address.partition("%")[0]).is_loopback


def token_of(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token in `file`, or that of the environment; `None` without either. Raises `ConfigurationError`, which never shows it."""
    if file is None:
        given, where = environment.get(UI_TOKEN), UI_TOKEN
        if given is None:
            return None
    else:
        where = str(file)
        try:
            given = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigurationError(f"the token can't be read from {where}: {reason}; give --token-file a file with one line") from None
    if _FORM.fullmatch(given.strip()) is None:
        raise ConfigurationError(
            f"the token in {where} can't be used: it must have 16 to 1024 printable ASCII characters and no spaces; "
            "make one with: openssl rand -hex 32"
        )
    return given.strip()


#: Letters one by one, at most.
_LETTERS: Final = 100

_ID: Final = re.compile(r"\d{1,9}/\d{1,18}", re.ASCII)

#: Lines of a traceback, and headers that are shown.
_LINES: Final = 200
_HEADERS: Final = 100

Facts = dict[str, Any]
"""As `ackwise dlq show --json` has them."""

#: What has its own part below the other facts.
_APART: Final = ("headers", "value", "decoded", "traceback", "story")


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


def letter_page(place: Place, named: Named) -> Page:
    """The page at `/letter?id=PARTITION/OFFSET`."""
    seen = SeenByName(lambda letter: _look(place, letter))

    async def answer(query: Mapping[str, str]) -> Leaf:
        letter = query.get("id", "")
        if _ID.fullmatch(letter) is None:
            raise ConfigurationError("no dead letter is named; the page of dead letters links to each")
        sight = await seen.now(letter)
        values = {"problem": sight.problem, "letter": sight.value, **({} if sight.value is None else _values(sight.value, letter, named))}
        return Leaf(f"Dead letter {letter}", "letter.html", values)

    return Page("/letter", answer)


async def _look(place: Place, letter: str) -> Facts:
    partition, offset = map(int, letter.split("/"))
    found = await look_up(place, partition, offset)
    if found is None:
        raise ConfigurationError(f"there is no letter {letter} in {place.names.dead_letter!r}; it may have expired")
    return letter_facts(*found) | await asyncio.to_thread(contents, place, found[0], with_traceback=True)  # a decoder may take its time


def _values(facts: Facts, letter: str, named: Named) -> Facts:
    message, again = facts["message"], [] if facts["state"] == "open" else ["--again"]
    headers = [(name or "", "none" if value is None else Cell(value, "block")) for name, value in facts["headers"][:_HEADERS]]
    given = {name: value for name, value in facts.items() if name not in _APART and value not in (None, "", [], {})}
    return {
        "story": f"/story?message={quote(message, safe='')}",
        "why": named.story(message),
        "redrive": named.command(("dlq", "redrive", APP, letter, *again)),
        "drop": named.command(("dlq", "drop", GROUP, letter, *again)),
        "show": named.command(("dlq", "show", GROUP, letter)),
        "facts": {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in given.items()},
        "headers": Table("As the producer wrote them", ("name", "value"), headers),
        "more_headers": len(facts["headers"]) - _HEADERS,
        "lines": facts["traceback"].splitlines()[-_LINES:],
    }


#: Seconds that a connection lasts: a page waits for brokers, and what it found is on its way to a slow client then.
_LONGEST: Final = 2 * PATIENCE

_READ_ALONE: Final = "these pages can be read, and nothing else; use the commands that they show"
_MISSING: Final = "there is no page of this name; the links above lead to those that are there"


def site(group: str, pages: Sequence[Page], access: Access, say: Callable[[str], None]) -> web.Application:
    """Answers for `pages`; an unexpected error of a page goes to `say`."""
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
        """In words alone: a refused client learns nothing of the group."""
        refused = access.refusal(request.headers.get("Host", ""), request.headers.get("Authorization", ""))
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
