"""The server of the pages: what is in every answer, who gets none, and what clients from hell cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest
from tests.plugin.web.site.site import HOSTILE, Document, opened
from tests.tables import each
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.web import oncallsite, pageserver
from ackwise.plugin.web.oncallsite import Access, serve, site
from ackwise.plugin.web.pages import HTML, POLICY, Answer, Leaf, Page
from ackwise.plugin.web.pageserver import bound

SECRET = "f3a1" * 8
LARGE = 50_000_000


async def told(query: Mapping[str, str]) -> Leaf:
    return Leaf("Told", "sentence.html", {"sentence": query.get("text", "nothing")})


async def refused(query: Mapping[str, str]) -> Answer:
    raise ConfigurationError(f"no <{query.get('text', '')}> here")


async def broken(query: Mapping[str, str]) -> Answer:
    raise RuntimeError("with a secret")


async def report(query: Mapping[str, str]) -> Answer:
    return Answer(b"<p>as it is</p>", HTML, policy="default-src 'none'")


async def large(query: Mapping[str, str]) -> Answer:
    return Answer(b"x" * LARGE, HTML)


PAGES = [
    Page("/", told, "First"), Page("/refused", refused, "Refused"), Page("/broken", broken), Page("/report", report), Page("/large", large),
]  # fmt: skip


@asynccontextmanager
async def served(pages: list[Page] = PAGES) -> AsyncIterator[int]:
    """The port of a server with the limits of `ackwise ui`."""
    listening, stop = bound("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(listening, site("billing", pages, Access(), print), stop))
    try:
        yield listening.getsockname()[1]
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await serving


async def exchange(port: int, said: bytes) -> bytes:
    """What is answered to these bytes, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    found = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            found = await reader.read()
    writer.close()
    return found


@each("path", ["/", "/refused", "/broken", "/nowhere", "/report"])
async def test_nothing_is_kept_framed_run_or_loaded_from_elsewhere(path: str) -> None:
    async with opened(PAGES) as found, found.client.get(path) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Server"] == "ackwise"
        assert "Set-Cookie" not in answer.headers


def test_the_policy_lets_no_script_run_and_no_other_style() -> None:
    assert "script" not in POLICY
    assert "unsafe" not in POLICY
    assert "frame-ancestors 'none'" in POLICY
    assert "style-src 'sha256-" in POLICY


async def test_a_page_has_links_to_the_others_and_its_query_is_escaped() -> None:
    async with opened(PAGES) as found, found.client.get("/", params={"text": HOSTILE}) as answer:
        page = Document(await answer.text())
    assert page.links == ["/", "/refused"]
    assert "<script>alert(1)</script>" in page.text
    assert "script" not in page.tags


async def test_an_error_of_ours_is_its_sentence_and_any_other_names_nothing_but_its_class_on_the_terminal() -> None:
    said: list[str] = []
    async with opened(PAGES, said=said) as found:
        assert "no &lt;x&gt; here" in await found.get("/refused?text=x", 404)
        assert said == []
        markup = await found.get("/broken", 500)
        assert "the terminal of ackwise ui shows where" in markup
    (line,) = said
    assert line.startswith("the page /broken failed: RuntimeError at ")
    assert "secret" not in line + markup


@each("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_pages_can_be_read_and_nothing_else(method: str) -> None:
    async with opened(PAGES) as found, found.client.request(method, "/") as answer:
        assert answer.status == 405
        assert "these pages are read-only" in await answer.text()


async def test_a_page_that_is_not_there_is_a_sentence_with_the_links() -> None:
    async with opened(PAGES) as found:
        page = await found.page("/%2e%2e/etc/passwd", 404)
    assert "there is no such page" in page.text
    assert page.links == ["/", "/refused"]


async def test_without_a_token_a_name_from_elsewhere_gets_nothing_of_the_group() -> None:
    async with opened(PAGES) as found:
        text = await found.get("/", 403, Host="evil.example")
        assert "billing" not in text
        assert "First" not in text
        await found.get("/nowhere", 403, Host="evil.example:80")
        await found.get("/", 200, Host="localhost:1")


async def test_with_a_token_a_browser_asks_for_it_and_nothing_is_answered_without_it() -> None:
    async with opened(PAGES, token=SECRET) as found:
        async with found.client.get("/") as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Basic realm="ackwise ui", charset="UTF-8"'
            assert answer.headers["Cache-Control"] == "no-store"
            assert "billing" not in await answer.text()
        for path in ("/nowhere", "/broken", f"/?token={SECRET}"):
            await found.get(path, 401)
        await found.get("/", 401, Authorization=f"Bearer {SECRET[:-1]}")
        await found.get("/", 200, Authorization=f"Bearer {SECRET}", Host="ops.example")


@pytest.mark.slow  # waits for the end of a request that does not come
@each(
    "said",
    [
        b"\r\n\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\xff\xfe?\xff=\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=["blank", "short", "tls", "version", "long", "header", "hosts", "bytes", "hostless", "chunked"],
)  # fmt: skip
async def test_nonsense_gets_a_refusal_and_the_next_one_its_page(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oncallsite, "_LONGEST", 3.0)  # what is never whole is let go then
    async with served() as port:
        answer = await exchange(port, said)
        assert b" 200 " not in answer.partition(b"\r\n")[0]
        assert b"Traceback" not in answer
        assert b" 200 OK" in await exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@each("said", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_client_that_says_or_reads_nothing_is_let_go(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, end = asyncio.Event(), pageserver._end

    def noted(protocol: object) -> None:
        end(protocol)
        ended.set()

    monkeypatch.setattr(oncallsite, "_LONGEST", 0.2)
    monkeypatch.setattr(pageserver, "_end", noted)
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(said)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        read = 0
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while part := await reader.read(2**20):
                    read += len(part)
        writer.close()
        assert read < LARGE


async def test_whoever_is_connected_when_it_ends_does_not_keep_it() -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
