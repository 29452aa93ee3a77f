"""The on-call web UI of `ackwise ui`: pages with the status of a group, its dead letters by cause, and each dead letter.

`Access` decides which requests are answered.
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
from ackwise.middleware.message.disposition import Reason
from ackwise.middleware.usercode import where_raised
from ackwise.plugin.operate.deadletter import Cause, Selection
from ackwise.plugin.operate.deadlettertables import CAUSE, causes_table, contents, letter_facts, letters_table, remarks
from ackwise.plugin.operate.deadlettertopics import Place, list_letters, look_up
from ackwise.plugin.operate.groupstatus import APP, GROUP, shown
from ackwise.plugin.operate.statusreader import look_at
from ackwise.plugin.operate.table import Cell, Table
from ackwise.plugin.settings.config import UI_TOKEN
from ackwise.plugin.web.lastseen import PATIENCE, Seen, SeenByName
from ackwise.plugin.web.pages import HTML, Answer, Leaf, Named, Page, document
from ackwise.plugin.web.pageserver import application, serving

#: Form of a token; 16 characters are too many to guess.
_FORM: Final = re.compile(r"[!-~]{16,1024}")

#: Host names that a browser on this machine sends; after DNS rebinding a foreign page sends another one.
_LOCAL: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)


class Refusal(NamedTuple):
    """Status and sentence for a refused request."""

    status: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Access:
    """Allows requests with `token`; without a token, requests to localhost."""

    token: str | None = None

    def refusal(self, host: str, authorization: str) -> Refusal | None:
        """Return the refusal of a request with these headers; `None` if it is allowed."""
        if self.token is None:
            if _LOCAL.fullmatch(host) is None:
                return Refusal(403, "without a token this page is for localhost alone: ask for it as http://localhost or http://127.0.0.1")
            return None
        if not hmac.compare_digest(_given(authorization), self.token.encode()):
            return Refusal(401, "this page needs its token: as the password, or as Authorization: Bearer TOKEN")
        return None


def _given(authorization: str) -> bytes:
    """Return the token of a request: of `Bearer`, or the password of `Basic` with any user."""
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
    """Return True if only this machine reaches the IP address `address`."""
    return ip_address(address.partition("%")[0]).is_loopback


def token_of(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token from `file` or the environment; `None` without either. Raises `ConfigurationError` without the token in it."""
    if file is None:
        given, where = environment.get(UI_TOKEN), UI_TOKEN
        if given is None:
            return None
    else:
        where = str(file)
        try:
            given = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigurationError(f"the token can't be read from {where}: {reason}; give --token-file a file with one line") from None
    if _FORM.fullmatch(given.strip()) is None:
        raise ConfigurationError(
            f"the token in {where} can't be used: it must have 16 to 1024 printable ASCII characters and no spaces; "
            "make one with: openssl rand -hex 32"
        )
    return given.strip()


#: Maximum number of single dead letters.
_LETTERS: Final = 100

_ID: Final = re.compile(r"\d{1,9}/\d{1,18}", re.ASCII)

#: Maximum numbers of shown traceback lines and headers.
_LINES: Final = 200
_HEADERS: Final = 100

Facts = dict[str, Any]
"""The JSON object of `ackwise dlq show --json`."""

#: Facts with their own section on the page.
_APART: Final = ("headers", "value", "decoded", "traceback", "story")


def status_page(place: Place, named: Named) -> Page:
    """Return the page at `/`."""
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
    """Return the page at `/letters`; with `?cause=` it shows one cause."""
    seen = SeenByName(lambda cause: list_letters(place, Selection(cause=cause or None, again=True), _LETTERS))

    def redrive(cause: Cause) -> str:
        return named.command(("dlq", "redrive", APP, "--cause", cause.fingerprint, *_expired(cause.reason)))

    async def answer(query: Mapping[str, str]) -> Leaf:
        cause = query.get("cause", "")
        if cause and CAUSE.fullmatch(cause) is None:
            raise ConfigurationError("there is no such cause; the page of dead letters links to each")
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
    """Return the page at `/letter?id=PARTITION/OFFSET`."""
    seen = SeenByName(lambda letter: _look(place, letter))

    async def answer(query: Mapping[str, str]) -> Leaf:
        letter = query.get("id", "")
        if _ID.fullmatch(letter) is None:
            raise ConfigurationError("the id of a dead letter is missing; the page of dead letters links to each")
        sight = await seen.now(letter)
        values = {"problem": sight.problem, "letter": sight.value, **({} if sight.value is None else _values(sight.value, letter, named))}
        return Leaf(f"Dead letter {letter}", "letter.html", values)

    return Page("/letter", answer)


def _expired(reason: str) -> list[str]:
    return ["--expired"] if reason == Reason.EXPIRED else []


async def _look(place: Place, letter: str) -> Facts:
    partition, offset = map(int, letter.split("/"))
    found = await look_up(place, partition, offset)
    if found is None:
        raise ConfigurationError(f"there is no dead letter {letter} in {place.names.dead_letter!r}; it may have expired")
    return letter_facts(*found) | await asyncio.to_thread(contents, place, found[0], with_traceback=True)  # a decoder may take its time


def _values(facts: Facts, letter: str, named: Named) -> Facts:
    message, again = facts["message"], [] if facts["state"] == "open" else ["--again"]
    headers = [(name or "", "none" if value is None else Cell(value, "block")) for name, value in facts["headers"][:_HEADERS]]
    given = {name: value for name, value in facts.items() if name not in _APART and value not in (None, "", [], {})}
    return {
        "story": f"/story?message={quote(message, safe='')}",
        "why": named.story(message),
        "redrive": named.command(("dlq", "redrive", APP, letter, *again, *_expired(facts["reason"]))),
        "drop": named.command(("dlq", "drop", GROUP, letter, *again)),
        "show": named.command(("dlq", "show", GROUP, letter)),
        "facts": {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in given.items()},
        "headers": Table("As the producer wrote them", ("name", "value"), headers),
        "more_headers": len(facts["headers"]) - _HEADERS,
        "lines": facts["traceback"].splitlines()[-_LINES:],
    }


#: Seconds that a connection may last: a page waits for brokers, and then sends its answer to a slow client.
_LONGEST: Final = 2 * PATIENCE

_READ_ALONE: Final = "these pages are read-only; use the commands that they show"
_MISSING: Final = "there is no such page; use the links above"


def site(group: str, pages: Sequence[Page], access: Access, say: Callable[[str], None]) -> web.Application:
    """Return the application that serves `pages`; unexpected errors of a page go to `say`."""
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
        return draw(request, _sentence("This page failed", "this page failed; the terminal of ackwise ui shows where", 500))

    def missing(request: web.Request, status: int) -> Answer:
        return draw(request, _sentence("Not allowed", _READ_ALONE, 405) if status == 405 else _sentence("No such page", _MISSING, 404))

    def refusal(request: web.Request) -> Answer | None:
        """Return plain text: a refused client learns nothing about the group."""
        refused = access.refusal(request.headers.get("Host", ""), request.headers.get("Authorization", ""))
        if refused is None:
            return None
        challenge = 'Basic realm="ackwise ui", charset="UTF-8"' if refused.status == 401 else ""
        return Answer(f"{refused.sentence}\n".encode(), status=refused.status, challenge=challenge)

    return application({page.path: answering(page) for page in pages}, failed=failed, missing=missing, refusal=refusal)


async def serve(listening: socket.socket, app: web.Application, stop: asyncio.Event) -> None:
    """Answer requests to `listening` until `stop` is set."""
    async with serving(app, listening, _LONGEST):
        await stop.wait()


def _sentence(title: str, sentence: str, status: int) -> Leaf:
    return Leaf(title, "sentence.html", {"sentence": sentence}, status)
