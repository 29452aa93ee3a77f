"""The broker is unavailable, or hangs: workers of both hosts wait for it, go on when it is back, and end in time when they are told to.

The trials of ways of consuming whose broker goes away are here as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError
from tests.failures.hostile import fausting
from tests.failures.hostile.looping import loop
from tests.failures.hostile.trial import host, started
from tests.failures.modes.trial import MODES
from tests.failures.test_modes import play
from tests.failures.world import NewWorld, Record, expected, mixed_messages
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise.plugin.local.localkafka import LocalKafka
from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(250)]  # waits for brokers to start again, and for workers to give up

#: Seconds that a worker of these tests drains, and within which it has ended then, on a machine that has other work as well.
DRAIN, END = 1.0, 25.0

#: Seconds, and longer than every timeout of the clients in this process: one for the session, three for a request.
AWAY = 4.5

WORKER = """
import os
from pathlib import Path
from ackwise import App

app = App(os.environ["GROUP"], brokers=os.environ["BROKERS"], **eval(os.environ["MORE"]))

@app.agent(os.environ["TOPIC"])
async def bill(value: str) -> None:
    Path(os.environ["GROUP"] + "-" + value).touch()
"""

OF_FAUST = """
import os
from pathlib import Path
import faust

app = faust.App(os.environ["GROUP"], broker="kafka://" + os.environ["BROKERS"], datadir="data", web_enabled=False, topic_partitions=1)
app.use()

@app.agent(app.topic(os.environ["TOPIC"], value_serializer="raw"))
async def bill(values):
    async for value in values:
        Path(os.environ["GROUP"] + "-" + value.decode()).touch()
"""

COMMANDS = {
    "host": ("ackwise.plugin.cli", "run", "worker:app"),
    "faust": ("faust", "-A", "offaust", "worker", "-l", "info", "--without-web"),
}


class Workers:
    """Processes of both hosts in one folder. A value that one of them is given is a file there, after the name of its group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "worker.py").write_text(WORKER)
        (folder / "offaust.py").write_text(OF_FAUST)

    def start(self, kind: str, brokers: str, topic: str, group: str, more: str = "{}") -> None:
        environment = {
            **os.environ,
            "BROKERS": brokers,
            "TOPIC": topic,
            "GROUP": group,
            "MORE": more,
            "ACKWISE_DRAIN_TIMEOUT": f"{DRAIN:g}s",
        }
        with (self.folder / f"{group}.log").open("wb") as log:
            command = [sys.executable, "-m", *COMMANDS[kind]]
            self.running[group] = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def said(self, group: str) -> str:
        return (self.folder / f"{group}.log").read_text()

    async def until(self, condition: Callable[[str], bool], *groups: str) -> None:
        """Until `condition` holds for each of `groups`."""
        async with asyncio.timeout(90):
            for group in groups:
                while not condition(group):
                    assert self.running[group].returncode is None, self.said(group)
                    await asyncio.sleep(0.05)

    async def until_given(self, value: str, *groups: str) -> None:
        await self.until(lambda group: (self.folder / f"{group}-{value}").exists(), *groups)

    async def end(self, *groups: str) -> None:
        """Tell them to stop, and assert that they end in time with 0, and without a traceback."""
        for group in groups:
            self.running[group].send_signal(signal.SIGTERM)
        codes = await asyncio.gather(*(asyncio.to_thread(self.running[group].wait, END) for group in groups))
        assert codes == [0] * len(groups), [self.said(group) for group in groups]


@pytest.fixture(scope="module")
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it goes away."""
    return own_kafka


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    for process in made.running.values():
        process.kill()
        process.wait()


async def until_it_makes_topics(raw: RawKafka) -> None:
    """A broker that was stalled is shut out of its own cluster for a moment."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(AssertionError, KafkaError):
                await raw.new_topic()
                return
            await asyncio.sleep(0.1)


async def test_workers_that_are_told_to_stop_end_in_time_while_their_broker_hangs(
    kafka: LocalKafka, raw_kafka: RawKafka, workers: Workers
) -> None:
    topic = await raw_kafka.new_topic()
    await raw_kafka.produce(topic, b"before")
    for kind in COMMANDS:
        workers.start(kind, kafka.bootstrap, topic, f"hung-{kind}")
    await workers.until_given("before", *workers.running)
    kafka.pause()
    try:
        await workers.end(*workers.running)
    finally:
        kafka.resume()
        await until_it_makes_topics(raw_kafka)
    assert "Traceback" not in workers.said("hung-host")


async def test_without_a_broker_workers_end_when_they_are_told_to_and_others_wait_at_their_start_until_it_is_there(
    kafka: LocalKafka, raw_kafka: RawKafka, workers: Workers
) -> None:
    topic = await raw_kafka.new_topic()
    await raw_kafka.produce(topic, b"before")
    running, starting, impatient = ([f"{what}-{kind}" for kind in COMMANDS] for what in ("running", "starting", "impatient"))
    for group, kind in zip(running, COMMANDS, strict=True):
        workers.start(kind, kafka.bootstrap, topic, group)
    await workers.until_given("before", *running)
    kafka.kill()
    try:
        for groups in (starting, impatient):
            for group, kind in zip(groups, COMMANDS, strict=True):
                workers.start(kind, kafka.bootstrap, topic, group)
        await workers.end(*running)
        await workers.until(lambda group: "waits for the brokers" in workers.said(group), *starting, *impatient)
        await workers.end(*impatient)
    finally:
        await asyncio.to_thread(kafka.start)
    await workers.until_given("before", *starting)
    assert {group: workers.said(group).count("waits for the brokers") for group in starting} == dict.fromkeys(starting, 1)


async def test_a_worker_that_may_wait_no_longer_for_its_broker_ends_with_2_and_says_why(workers: Workers) -> None:
    workers.start("host", "127.0.0.1:1", "orders", "waiting", "{'start_timeout': 0.1}")
    assert await asyncio.to_thread(workers.running["waiting"].wait, 60) == 2
    assert "no broker answers" in workers.said("waiting")


async def test_an_outage_that_is_longer_than_every_timeout_costs_a_host_a_loop_and_a_worker_of_faust_nothing(
    kafka: LocalKafka, new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fausting.install(monkeypatch)
    monkeypatch.setattr("tests.failures.calls.REQUEST", 3.0)
    worlds = [new_world() for _ in range(3)]
    members = []
    for world, join in zip(worlds, (host, loop, fausting.worker(fausting.by_take)), strict=True):
        await world.create()
        await world.send(mixed_messages()[:30])
        members.append(started(world, join, Plan()))
        await world.wait(lambda world=world: len(world.ledger.runs()) >= 5, "the first messages", members[-1:])  # type: ignore[misc]
    kafka.kill()
    try:
        await asyncio.sleep(AWAY)  # the clients' own clocks run meanwhile
    finally:
        await asyncio.to_thread(kafka.start)
    for world, member in zip(worlds, members, strict=True):
        await world.send([*mixed_messages()[30:], Record.of("after", 1)])
        await world.wait_until_committed()
        await member.leave()
        runs, dead = expected(world.sent)
        await world.judge()
        assert set(world.ledger.runs()) == runs
        assert {letter.id for letter in await world.dead_letters()} == dead


@pytest.mark.parametrize("modes", [["key"], pytest.param([*MODES], marks=pytest.mark.nightly)], ids=["key", "all"])
async def test_a_broker_that_is_killed_and_comes_back_loses_no_message_and_breaks_no_order_or_promise(
    kafka: LocalKafka, tmp_path: Path, modes: list[str]
) -> None:
    await play(kafka, tmp_path, [(mode, "broker", 1) for mode in modes], kafka)
