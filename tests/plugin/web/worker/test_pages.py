"""The pages of a worker: what each answers before, while and after it works, and under clients that mean no good."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from tests.plugin.operate.test_state import ORDERS, AwayStore, agent, end, give, make_member
from tests.plugin.web.worker.pages import Pages, an_app, port_of, running
from tests.tables import each
from tests.waiting import PATIENCE, until

from ackwise import App, ConsumeLater, Dedup, Message, SimpleConsumer, Watch
from ackwise.errors import ConfigurationError
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.plugin.aiokafkahost import watching_of
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.operate.machinechecks import needs
from ackwise.plugin.settings.config import Config, Given
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.web import pageserver, workerserver
from ackwise.plugin.web.pages import Answer
from ackwise.plugin.web.pageserver import bound
from ackwise.plugin.web.workerpages import Watching
from ackwise.plugin.web.workerserver import LONGEST_TURN, WatchServer
from ackwise.testing.kafka.broker import MemoryKafka

SECRET = "hush"

#: Bytes of a page that no socket holds.
LARGE = 64_000_000


async def bill(message: Message[bytes]) -> None: ...


async def test_a_worker_that_joined_is_live_and_ready_also_without_a_partition(kafka: MemoryKafka, caplog: Any) -> None:
    async with running(an_app(kafka, bill), caplog) as first:
        await first.until(lambda found: found["ackwise_ready"] == 1)
        assert await first.get("/ready") == (200, "ready\n")
        assert [line.split()[0] for line in (await first.get("/"))[1].splitlines()] == ["/live", "/ready", "/metrics", "/ackwise/"]
        caplog.clear()
        async with running(an_app(kafka, bill), caplog) as second:  # one partition, and the first of them has it, or gets it
            await second.until(lambda found: found["ackwise_ready"] == 1)
            status, text = await second.get("/live")
            assert (status, text.partition(":")[0]) == (200, "live")


async def test_before_it_joined_a_worker_is_live_and_not_ready(caplog: Any) -> None:
    nobody = App("billing", brokers="127.0.0.1:1", config=Config())
    nobody.use(Watch(0))
    nobody.agent("orders")(bill)
    async with running(nobody, caplog) as pages:
        assert await pages.get("/ready") == (503, "not ready: the worker has not joined its group yet\n")
        assert (await pages.get("/live"))[0] == 200
        assert (await pages.get("/ackwise/"))[0] == 503
        assert (await pages.metrics())["ackwise_ready"] == 0


async def test_a_worker_whose_store_did_not_answer_is_not_ready_and_says_why(caplog: Any) -> None:
    caplog.set_level("INFO", "ackwise")
    member = make_member(agent("bill", "orders"), store=AwayStore())
    member.has_joined.set()
    lane = give(member, ORDERS, 1)
    async with Watching(Watch(0), lambda: pytest.fail("nobody asks")).opened(member):
        pages = Pages(port_of(caplog))
        assert await pages.get("/ready") == (200, "ready\n")
        lane.start()
        await until(lambda: lane.held)
        assert await pages.get("/ready") == (503, "not ready: the store did not answer the last request\n")
        await end(lane)


async def test_a_worker_whose_relay_can_t_read_cancellations_is_not_ready_and_says_why(caplog: Any) -> None:
    caplog.set_level("INFO", "ackwise")
    member = make_member(agent("bill", "orders"))
    member.has_joined.set()
    member.delay_counts.is_halted = True
    async with Watching(Watch(0), lambda: pytest.fail("nobody asks")).opened(member):
        pages, why = Pages(port_of(caplog)), "cancellations can't be read, and no waiting copy is delivered until they can"
        assert await pages.get("/ready") == (503, f"not ready: {why}\n")
        member.delay_counts.is_halted = False
        assert await pages.get("/ready") == (200, "ready\n")


async def test_the_state_is_json_for_programs_and_tables_for_browsers(kafka: MemoryKafka, caplog: Any) -> None:
    async with running(an_app(kafka, bill, Dedup("memory://")), caplog) as pages:
        await pages.until(lambda found: found.get('ackwise_assigned_partitions{role="source"}') == 1)
        status, text = await pages.get("/ackwise/")
        state = json.loads(text)
        assert (status, state["group"], [lane["topic"] for lane in state["lanes"]][:1]) == (200, "billing", ["billing.retry"])
        assert {"watch.port", "dedup.lease"} <= {setting["name"] for setting in state["settings"]}
        assert (await pages.get("/ackwise/", Accept="text/html"))[1].startswith("<!doctype html>")


async def test_no_page_shows_a_payload_a_key_or_what_a_handler_says(kafka: MemoryKafka, caplog: Any) -> None:
    async def refuse(message: Message[bytes]) -> None:
        raise ValueError(message.value.decode())

    app = an_app(kafka, refuse, ConsumeLater(1, levels="1h"), Dedup("memory://"), client_options={"sasl_plain_password": SECRET})
    async with running(app, caplog) as pages:
        kafka.produce("orders", SECRET.encode(), key=SECRET.encode())
        await pages.until(lambda found: found.get("ackwise_delayed_copies" + '{messaging_destination_name="billing.delay"}') == 1)
        for path in ("/", "/live", "/ready", "/metrics", "/ackwise/"):
            assert SECRET not in (await pages.get(path))[1]
            assert SECRET not in (await pages.get(path, Accept="text/html"))[1]


async def test_a_port_in_use_is_one_sentence_and_the_worker_does_not_start(kafka: MemoryKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app = App("billing", brokers=kafka.bootstrap, config=Config())
        app.use(Watch(taken.getsockname()[1]))
        app.agent("orders")(bill)
        with pytest.raises(ConfigurationError, match=r"^Watch can't listen on 127.0.0.1:\d+: the port is in use; choose another one"):
            await app.serve(asyncio.Event())


def test_without_its_packages_it_is_refused_with_the_extra_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for module in ("web.pageserver", "web.workerserver", "web.workerpages"):
        monkeypatch.delitem(sys.modules, f"ackwise.plugin.{module}")
    app = App("billing", config=Config())
    app.use(Watch())
    app.agent("orders")(bill)
    with pytest.raises(ConfigurationError, match=r"^Watch needs aiohttp, which is not installed; pip install 'ackwise\[watch\]'$"):
        watching_of(app._slots, app.settings, app.agents())


def test_the_doctor_knows_the_extra_that_it_needs() -> None:
    assert needs(None, None, watch=Watch()) == {"watch": "Watch of this app serves its pages with it"}


async def test_a_simple_consumer_is_watched_too(kafka: MemoryKafka, caplog: Any) -> None:
    caplog.set_level("INFO", "ackwise")
    async with SimpleConsumer("billing", "orders", Dedup("memory://"), Watch(0), brokers=kafka.bootstrap) as consumer:
        kafka.produce("orders", b"one")
        async with asyncio.timeout(PATIENCE):
            while not (received := await consumer.receive(1, invisible=30)):
                pass
            await consumer.ack(received[0])
        shown = await Pages(port_of(caplog)).until(lambda found: found.get('ackwise_messages_total{agent="receiver",outcome="done"}') == 1)
    assert shown["ackwise_ready"] == 1


async def test_a_worker_that_stops_is_not_ready_and_its_port_is_free_again(kafka: MemoryKafka, caplog: Any) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait(message: Message[bytes]) -> None:
        begun.set()
        await may_end.wait()

    app, stop = an_app(kafka, wait), asyncio.Event()
    caplog.set_level("INFO", "ackwise")
    kafka.produce("orders", b"one")
    serving = asyncio.create_task(app.serve(stop))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    pages = Pages(port_of(caplog))
    stop.set()
    await pages.until(lambda found: found["ackwise_ready"] == 0)
    assert await pages.get("/ready") == (503, "not ready: the worker stops\n")
    may_end.set()
    await serving
    bound("127.0.0.1", pages.port).close()


@each("host", ["192.0.2.1", "a" * 70 + ".b"])
def test_an_address_that_this_machine_has_not_is_one_sentence(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use 127\.0\.0\.1 or 0\.0\.0\.0$"):
        bound(host, 0)


@each(("port", "host"), [(-1, "127.0.0.1"), (65536, "::1"), (True, "::1"), ("80", "::1"), (80, ""), (80, 7), (80, "a\nb")])
def test_what_is_no_port_or_host_is_refused(port: Any, host: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^(port|host) of Watch is "):
        Watch(port, host=host)


def test_an_entry_or_the_command_line_turns_it_on_and_the_command_line_wins() -> None:
    app = App("billing", config=Config({("watch", "port"): Given(9000, "ackwise.toml"), ("watch", "host"): Given("::1", "ackwise.toml")}))
    app.agent("orders")(bill)
    assert {"watch.port": "9000", "watch.host": "::1"}.items() <= {one.name: one.value for one in app.explain().settings}.items()
    app._slots.watch_port = 9100
    assert app._slots.watch == Watch(9100, host="::1")


async def test_while_a_handler_blocks_the_loop_the_pages_say_so(kafka: MemoryKafka, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.web.workerserver._PATIENCE", 0.1)
    watching = Watching(Watch(0), lambda: pytest.fail("nobody asks"))
    member = Member(HostSettings("nowhere:1", "billing"), [], Parts(ConsumeLater(), DeadLetter()))
    caplog.set_level("INFO", "ackwise")
    answers: list[tuple[int, str]] = []

    def ask(port: int) -> None:
        """In a thread: the loop does not turn."""

        async def get() -> None:
            pages = Pages(port)
            answers.extend([await pages.get("/live"), await pages.get("/ackwise/"), await pages.get("/metrics")])

        asyncio.run(get())

    async with watching.opened(member):
        watching._turns.turned_at = time.monotonic() - LONGEST_TURN - 60
        asking = threading.Thread(target=ask, args=(port_of(caplog),))
        asking.start()
        asking.join()  # so does a handler that blocks
    assert answers[0][0] == 503
    assert answers[0][1].startswith("not live: the event loop has not turned for ")
    assert answers[1][0] == 503
    assert "ackwise_loop_turned_seconds" in answers[2][1]
    assert "ackwise_commits" not in answers[2][1]


async def test_a_handler_in_a_thread_that_hangs_leaves_its_worker_live_and_ready(kafka: MemoryKafka, caplog: Any) -> None:
    may_end = threading.Event()

    def hang(message: Message[bytes]) -> None:
        may_end.wait(PATIENCE)

    async with running(an_app(kafka, hang), caplog) as pages:
        kafka.produce("orders", b"one")
        await pages.until(lambda found: found.get('ackwise_running{agent="bill"}') == 1)
        assert (await pages.get("/live"))[0] == 200
        assert await pages.get("/ready") == (200, "ready\n")
        may_end.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is let go after a fifth of a second. The server reads this as it starts, so this comes before `served`."""
    monkeypatch.setattr(workerserver, "_LONGEST", 0.2)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection lasts as long as the test; as `impatient` besides."""
    monkeypatch.setattr(workerserver, "_LONGEST", PATIENCE)


@pytest.fixture
async def served() -> Any:
    """A server of one page that is larger than what a socket holds."""

    async def large(request: Any) -> Answer:
        return Answer(b"x" * LARGE)

    async def small(request: Any) -> Answer:
        return Answer(b"small")

    async def broken(request: Any) -> Answer:
        raise ValueError(SECRET)

    listening = bound("127.0.0.1", 0)
    running = WatchServer({"/small": small, "/large": large, "/broken": broken}, listening)
    running.start()
    yield Pages(listening.getsockname()[1])
    await running.close()


@each(
    "request_bytes",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /small HTTP/9.9\r\n\r\n",
        b"GET /small HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /small HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /small/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_the_next_one_is_answered(
    served: Pages, request_bytes: bytes, caplog: Any
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(request_bytes)
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.0 4"))
    assert SECRET.encode() not in answer
    assert SECRET not in caplog.text
    assert await served.get("/small") == (200, "small")


@pytest.mark.usefixtures("impatient")
@each("said", [b"", b"GET /sma", b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["nothing", "half", "reads nothing"])
async def test_a_client_that_says_or_reads_nothing_is_let_go(served: Pages, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, end = threading.Event(), pageserver._end

    def noted(protocol: object) -> None:
        end(protocol)
        ended.set()

    monkeypatch.setattr(pageserver, "_end", noted)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    writer.write(said)
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    read = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while part := await reader.read(2**20):
                read += len(part)
    writer.close()
    assert read < LARGE
    assert await served.get("/small") == (200, "small")


@pytest.mark.usefixtures("patient")
async def test_of_many_connections_those_above_the_limit_are_closed_and_the_others_answered(
    served: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pageserver, "_MOST", 5)
    idle = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(5)]
    for _, writer in idle:
        writer.write(b"GET /small HTTP/1.1\r\n")
    answered: Any = [(200, "small")]
    while answered == [(200, "small")]:  # until the server has let all five in
        answered = await asyncio.gather(served.get("/small"), return_exceptions=True)
    assert isinstance(answered[0], aiohttp.ClientError)
    for reader, writer in idle:
        writer.write(b"Host: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 200")
        writer.close()
    assert await served.get("/small") == (200, "small")
