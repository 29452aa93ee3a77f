"""What a Faust worker answers at `/ackwise/` and `/metrics`, before it runs and in the midst of its work on a real Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import faust
import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiokafka import TopicPartition
from tests.databases.server import free_port
from tests.servers import RawKafka

from ackwise import Dedup
from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.faust.faustweb import add_view
from ackwise.plugin.operate.state import GroupTopics, State

ROOT = Path(__file__).parents[2]

#: Seconds until what a test waits for has failed to happen; a start of Faust takes six on a busy machine.
DEADLINE = 60.0

STATE = State("billing", (), (), None, None, False, 0, GroupTopics("billing.retry", "billing.delay", "billing.dlq"), (), ())


class Watched:
    """A host whose state is known."""

    async def look(self) -> State:
        return STATE


class Unopened:
    async def look(self) -> State:
        raise AckwiseError("the app was not started, and what it used is not open")


async def bill(orders: Any) -> None: ...


@asynccontextmanager
async def client_of(watched: object) -> AsyncIterator[TestClient[Any, Any]]:
    """Asks the web server of an app with the view, which never started."""
    app: Any = faust.App("billing", loop=asyncio.get_running_loop())
    app.ackwise = watched
    add_view(app)
    app.web.init_server()
    async with TestClient(TestServer(app.web.web_app)) as client:
        yield client


async def test_a_program_gets_the_state_as_json_and_a_browser_as_a_page() -> None:
    async with client_of(Watched()) as client:
        for accept in ("*/*", "application/json"):
            async with client.get("/ackwise/", headers={"Accept": accept}) as answer:
                assert (answer.status, answer.content_type) == (200, "application/json"), accept
                assert answer.headers["Cache-Control"] == "no-store"
                topics = {"retry": "billing.retry", "delay": "billing.delay", "dead_letters": "billing.dlq"}
                assert await answer.json() == {**asdict(STATE), "agents": [], "lanes": [], "chain": [], "settings": [], "topics": topics}
        browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
        async with client.get("/ackwise/", headers=browser) as answer:
            assert (answer.status, answer.content_type, answer.headers["Vary"]) == (200, "text/html", "Accept")
            assert "<h1>Ackwise: billing</h1>" in await answer.text()


async def test_an_app_that_is_not_open_yet_says_so_and_is_unavailable() -> None:
    async with client_of(Unopened()) as client, client.get("/ackwise/") as answer:
        assert answer.status == 503
        assert await answer.json() == {"error": "the app was not started, and what it used is not open"}


def test_the_view_stands_beside_those_of_faust_and_use_leaves_the_app_to_be_configured_and_its_web_server_unmade() -> None:
    app: Any = faust.App("billing")
    app.use()
    assert (app.configured, "web" in vars(app)) == (False, False)
    app.web.init_server()
    assert {"/ackwise/", "/router/", "/table/"} <= app.web.views.keys()


def test_no_password_stands_in_what_the_view_says_of_the_policies() -> None:
    app: Any = faust.App("billing", broker="kafka://kafka-1:9092")
    app.use(Dedup("redis://worker:hunter2@redis-1/0"))
    app.agent(app.topic("orders"), name="bill")(bill)
    shown = app.ackwise._explained
    assert "redis-1" in repr((shown.chain, shown.settings))
    assert "hunter2" not in repr((shown.chain, shown.settings))


def test_an_app_without_ackwise_has_no_view() -> None:
    app: Any = faust.App("billing")
    app.web.init_server()
    assert not [path for path in app.web.views if "ackwise" in path]


class Site:
    """A worker of `watched.py` and its web server."""

    def __init__(self, raw: RawKafka, group: str, topic: str, folder: Path, *, in_thread: bool) -> None:
        self.raw = raw
        self.group = group
        self.topic = topic
        self._folder = folder
        self._log = folder / "log"
        self._port = free_port()
        self._in_thread = in_thread

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        about = {
            "brokers": self.raw.bootstrap, "group": self.group, "topic": self.topic, "folder": str(self._folder),
            "port": self._port, "in_thread": self._in_thread,
        }  # fmt: skip
        command = (sys.executable, "-m", "faust", "-A", "tests.faust.watched", "worker", "-l", "info")
        with self._log.open("wb") as output:
            worker = self._worker = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env={**os.environ, "WATCHED": json.dumps(about)}, stdout=output, stderr=output
            )
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{self._port}") as self._session:
                yield
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(worker.wait(), DEADLINE) == 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()

    def go_on(self) -> None:
        (self._folder / "go on").touch()

    async def page(self, path: str, accept: str = "*/*") -> str:
        """What the worker answers; empty while it does not."""
        try:
            async with self._session.get(path, headers={"Accept": accept}) as answer:
                return await answer.text() if answer.status == 200 else ""
        except aiohttp.ClientError:
            return ""

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.page("/ackwise/") or "{}")
        return found

    async def numbers(self) -> dict[str, float]:
        """The numbers of Ackwise, by name and labels as the page has them."""
        text = re.sub(r',?messaging_consumer_group_name="[^"]*"', "", await self.page("/metrics"))
        found = re.findall(r"^ackwise_(\S+) (\S+)$", text, re.MULTILINE)
        return {name.replace("{}", "").replace("{,", "{"): float(value) for name, value in found if "_bucket" not in name}

    async def wait_until(self, look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
        found = None
        try:
            async with asyncio.timeout(DEADLINE):
                while not holds(found := await look()):
                    assert self._worker.returncode is None, f"the worker ended\n{self._log.read_text()[-4000:]}"
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not in time: {found}\n{self._log.read_text()[-4000:]}") from None
        return found


def messages(outcome: str) -> str:
    return f'messages_total{{agent="bill",outcome="{outcome}"}}'


@pytest.mark.kafka
@pytest.mark.slow  # the start of a worker of Faust takes seconds
@pytest.mark.parametrize("in_thread", [True, pytest.param(False, marks=pytest.mark.nightly)])
async def test_a_worker_tells_what_it_does_while_it_does_it(raw_kafka: RawKafka, tmp_path: Path, in_thread: bool) -> None:
    group = raw_kafka.new_group()
    site = Site(raw_kafka, group, await raw_kafka.new_topic(), tmp_path, in_thread=in_thread)
    async with site.running():
        await site.wait_until(site.state, lambda state: any(lane["agent"] == "bill" for lane in state.get("lanes", ())))
        await raw_kafka.produce(site.topic, b'"paid"')
        await site.wait_until(site.numbers, lambda numbers: numbers.get(messages("done")) == 1)
        await raw_kafka.produce(site.topic, b'"paid"', b'"declined"', b'"unpayable"')
        wanted = {messages(outcome): 1.0 for outcome in ("done", "duplicate", "sent_back", "dead")}
        await site.wait_until(site.numbers, lambda numbers: wanted.items() <= numbers.items())

        await raw_kafka.produce(site.topic, b'"slow"', b'"waits"')
        state = await site.wait_until(site.state, lambda state: state["agents"][0]["taken"] == state["claims"] - 1 == 1)
        (bill,) = state["agents"]
        assert {name: bill[name] for name in ("agent", "topics", "in_hand", "waiting", "held", "undeduplicated", "unprotected")} == {
            "agent": "bill", "topics": [site.topic], "in_hand": 2, "waiting": 1, "held": 0, "undeduplicated": 0, "unprotected": 0,
        }  # fmt: skip
        (lane,) = [lane for lane in state["lanes"] if lane["topic"] == site.topic]
        assert {name: lane[name] for name in ("role", "agent", "position", "watermark", "end", "lag", "in_hand", "running", "held")} == {
            "role": "source", "agent": "bill", "position": 6, "watermark": 4, "end": 6, "lag": 2, "in_hand": 2, "running": 2, "held": [],
        }  # fmt: skip
        assert 0 < lane["lag_seconds"] < 600
        assert (state["group"], state["store_down"], state["event_log_outage"]) == (group, False, False)
        assert state["topics"] == {"retry": f"{group}.retry", "delay": f"{group}.delay", "dead_letters": f"{group}.dlq"}
        assert any(step["what"] == "dedup" and step["how"].startswith("memory://") for step in state["chain"])
        assert {"name": "consume_later.max_reconsume_times", "value": "3", "source": "code"} in state["settings"]
        assert "<caption>Partitions</caption>" in await site.page("/ackwise/", accept="text/html")
        assert "shop_messages_received_total" in await site.page("/metrics")
        numbers = await site.numbers()
        assert {name: numbers[name] for name in ('in_hand{agent="bill"}', 'running{agent="bill"}', "claims")} == {
            'in_hand{agent="bill"}': 2, 'running{agent="bill"}': 2, "claims": 2,
        }  # fmt: skip
        assert numbers['store_exchange_seconds_count{result="answered"}'] >= 4
        assert numbers["commits_total"] >= 2
        assert 0 < max(seconds for name, seconds in numbers.items() if name.startswith("lag_seconds{")) < 600

        site.go_on()
        state = await site.wait_until(site.state, lambda state: state["claims"] == 0)
        await site.wait_until(site.numbers, lambda numbers: numbers[messages("done")] == 3)
    assert (await raw_kafka.committed(group))[TopicPartition(site.topic, 0)] == 6
