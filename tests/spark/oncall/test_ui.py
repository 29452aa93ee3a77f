"""`ackwise ui` as a process: where it listens, whom it lets in, what it refuses, and that no secret of its app is on a page."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

import aiohttp
import pytest
from tests.plugin.operate.deadletters.letters import APP, Shop
from tests.plugin.web.site.site import Document
from tests.spark.oncall.conftest import SECRET

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.config import UI_TOKEN
from ackwise.plugin.web.oncallsite import Access
from ackwise.spark.commands.ui import _checked

DEADLINE = 60.0
KEY = "f3a1" * 8


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != UI_TOKEN} | more


async def start(folder: Path, *arguments: str, **more: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "ackwise.plugin.cli", "ui", *arguments]
    return await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment(**more), stdout=PIPE, stderr=PIPE)


@asynccontextmanager
async def serving(folder: Path, *arguments: str, **more: str) -> AsyncIterator[str]:
    """The address that it names; it is ended as by Ctrl-C."""
    process = await start(folder, *arguments, "--port", "0", **more)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(DEADLINE):
            line = (await process.stderr.readline()).decode()
            found = re.fullmatch(r"group billing: (http://\S+/) until Ctrl-C\n", line)
            assert found is not None, line + (await process.stderr.read()).decode()
            yield found[1].removesuffix("/")
            process.send_signal(signal.SIGINT)
            out, error = await process.communicate()
        assert (process.returncode, out, error) == (0, b"", b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def refusal(folder: Path, *arguments: str, **more: str) -> str:
    """The sentence with which it ends."""
    process = await start(folder, *arguments, **more)
    async with asyncio.timeout(DEADLINE):
        out, error = await process.communicate()
    assert (process.returncode, out) == (2, b""), error
    assert error.count(b"\n") == 1
    return error.decode()


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_every_page_is_reached_from_the_first_one_and_none_has_a_secret_of_the_app(billing: Shop) -> None:
    async with serving(billing.folder, billing.app) as address:
        waiting, seen = ["/"], dict[str, str]()
        while waiting:
            path = waiting.pop()
            if path not in seen:
                status, seen[path] = await get(address + path)
                assert status == 200, (path, seen[path])
                waiting += [] if path.startswith("/report") else Document(seen[path]).links
    assert {"/", "/letters", "/letter?id=0/0", "/letter?id=1/1", "/story", "/story?message=orders%2F0%2F3", "/audits"} <= set(seen)
    assert "/report?run=20260101T000000Z-1" in seen
    assert [path for path, markup in seen.items() if SECRET in markup or "db.example" in markup] == []
    assert f"ackwise why orders/0/3 {billing.folder}/events" in Document(seen["/letter?id=0/0"]).commands
    assert "LOST" in seen["/story?message=orders%2F0%2F3"]


async def test_it_is_for_this_machine_alone_unless_a_token_is_set(billing: Shop) -> None:
    said = await refusal(billing.folder, billing.app, "--host", "0.0.0.0", "--port", "0")
    assert "--host is an address that other machines reach (0.0.0.0)" in said
    assert "--token-file FILE or ACKWISE_UI_TOKEN" in said
    async with serving(billing.folder, billing.app) as address:
        assert address.startswith("http://127.0.0.1:")
        assert (await get(address))[0] == 200
        assert (await get(address, Host="evil.example"))[0] == 403


def test_no_address_that_others_reach_is_taken_without_a_token() -> None:
    class Listening(NamedTuple):
        address: str

        def getsockname(self) -> tuple[str, int]:
            return self.address, 1

        def close(self) -> None: ...

    for address in ("0.0.0.0", "::", "192.0.2.7", "10.0.0.1", "fe80::1"):
        with pytest.raises(ConfigurationError, match="an address that other machines reach"):
            _checked(cast("socket.socket", Listening(address)), Access(None))
        _checked(cast("socket.socket", Listening(address)), Access(KEY))
    _checked(cast("socket.socket", Listening("127.0.0.1")), Access(None))


async def test_with_a_token_others_may_come_who_have_it(billing: Shop) -> None:
    (billing.folder / "token").write_text(f"{KEY}\n")
    async with serving(billing.folder, billing.app, "--host", "0.0.0.0", "--token-file", "token") as address:
        assert (await get(address))[0] == 401
        status, markup = await get(address, Authorization=f"Bearer {KEY}")
    assert status == 200
    assert KEY not in markup
    async with serving(billing.folder, billing.app, **{UI_TOKEN: KEY}) as address:
        assert (await get(address))[0] == 401


async def test_a_group_without_an_app_has_its_letters_and_says_what_stories_and_audits_need(billing: Shop) -> None:
    async with serving(billing.folder, "billing", "--brokers", billing.kafka.bootstrap) as address:
        assert "Dead letters" in (await get(f"{address}/letters"))[1]
        assert "no folder of events is known" in (await get(f"{address}/story?message=x"))[1]
        assert "no folder of runs is known" in (await get(f"{address}/audits"))[1]
    events = str(billing.folder / "events")
    async with serving(billing.folder, "billing", "--brokers", billing.kafka.bootstrap, "--events", events) as address:
        assert "LOST" in (await get(f"{address}/story?message=orders/0/3"))[1]
        assert "its report" in (await get(f"{address}/audits"))[1]


async def test_it_starts_while_the_brokers_are_away_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, "billing", "--brokers", "127.0.0.1:1") as address:
        status, markup = await get(address)
    assert status == 200
    assert "connection refused" in markup


async def test_what_can_not_be_used_is_one_sentence(billing: Shop) -> None:
    app, folder = billing.app, billing.folder
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = await asyncio.gather(
            refusal(folder, "nowhere:app"),
            refusal(folder, app, "--brokers", "127.0.0.1:1"),
            refusal(folder, app, "--token-file", "none"),
            refusal(folder, app, **{UI_TOKEN: "short"}),
            refusal(folder, app, "--host", "no such host"),
            refusal(folder, app, "--port", str(taken.getsockname()[1])),
        )
    for sentence, expected in zip(
        said,
        (
            "there is no module 'nowhere'",
            "leave --brokers and --dlq out",
            "No such file or directory",
            "16 to 1024 printable ASCII characters",
            "host of ui is 'no such host'",
            "the port is in use; choose another one (--port)",
        ),
        strict=True,
    ):
        assert expected in sentence


async def test_without_aiohttp_the_sentence_names_what_brings_it(billing: Shop) -> None:
    program = "import sys; sys.modules['aiohttp'] = None; from ackwise.plugin.cli.main import main; main()"
    command = [sys.executable, "-c", program, "ui", billing.app]
    process = await asyncio.create_subprocess_exec(*command, cwd=billing.folder, env=environment(), stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(DEADLINE):
        _, error = await process.communicate()
    assert process.returncode == 2
    assert "ui needs aiohttp, which is not installed: pip install 'ackwise[watch]'" in error.decode()


async def test_a_decoder_that_hangs_does_not_keep_it_from_its_end(billing: Shop) -> None:
    hangs = "\n    def __post_init__(self):\n        import pathlib, time\n        pathlib.Path('begun').touch()\n        time.sleep(600)\n"
    billing.write_app(APP.replace("    amount: int\n", f"    amount: int\n{hangs}"))
    process = await start(billing.folder, billing.app, "--port", "0")
    assert process.stderr is not None
    try:
        async with asyncio.timeout(DEADLINE):
            address = (await process.stderr.readline()).decode().split()[2]
            asking = asyncio.create_task(get(f"{address}letter?id=0/0"))
            while not (billing.folder / "begun").exists():  # noqa: ASYNC110  # another process would have to tell
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        with suppress(aiohttp.ClientError):
            await asking
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
