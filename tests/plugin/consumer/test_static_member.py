"""Static membership: restarts without a rebalance, two workers with one id, and partitions that nobody has, on a real Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise import App, ConsumeLater
from ackwise.errors import AckwiseError
from ackwise.middleware.events import Event, EventCode
from ackwise.plugin.consumer import staticmember
from ackwise.plugin.consumer.staticmember import instance_of_this_process
from ackwise.plugin.topics.groupstate import Membership, read_membership

pytestmark = [pytest.mark.timeout(180)]


#: Seconds: longer than a restart takes.
SESSION = 60


class Workers:
    """Workers of one group, what they have seen, and what they were told of their partitions."""

    def __init__(self, raw: RawKafka, topic: str) -> None:
        self.raw, self.topic, self.group = raw, topic, raw.new_group()
        self.seen: list[tuple[str, bytes]] = []
        self.assigned: dict[str, list[int | None]] = {}
        self.is_blocked: set[bytes] = set()
        self.begun: list[bytes] = []

    def app(self, instance: str, *, session: float = SESSION) -> App:
        """A worker, whose events of this life are under its id."""
        app = App(self.group, brokers=self.raw.bootstrap, group_instance_id=instance, session_timeout=session, commit_interval=0)
        app.use(ConsumeLater(3, levels=["100ms"]))
        life = f"{instance}-{len(self.assigned)}"
        self.assigned[life] = []

        @app.agent(self.topic, max_batch=1)
        async def handle(value: bytes) -> None:
            self.begun.append(value)
            while value in self.is_blocked:  # noqa: ASYNC110  # as a handler that polls something does
                await asyncio.sleep(0.05)
            self.seen.append((life, value))

        def note(event: Event) -> None:
            if event.code is EventCode.ASSIGNED and event.topic == self.topic:
                self.assigned[life].append(event.partition)

        app.use(note)
        return app

    async def membership(self) -> Membership:
        return await membership_of(self.raw, self.group)


async def membership_of(raw: RawKafka, group: str) -> Membership:
    admin = AIOKafkaAdminClient(bootstrap_servers=raw.bootstrap)
    await admin.start()
    try:
        (answer,) = await admin.describe_consumer_groups([group])
        return read_membership(answer.to_object()["groups"][0])
    finally:
        await admin.close()


async def run(app: App) -> None:
    async with app.running() as worker:
        await worker.ended()


async def test_a_restart_within_the_session_moves_no_partition_and_goes_on_where_it_stopped(raw_kafka: RawKafka) -> None:
    workers = Workers(raw_kafka, await raw_kafka.new_topic(4))
    async with workers.app("b").running() as other:
        await other.ready()
        async with workers.app("a").running() as first:
            await first.ready()
            await until(lambda: len(workers.assigned["a-1"]) == 2)
            await until(lambda: len(workers.assigned["b-0"]) == 6)  # all four, and then its two
            for partition in range(4):
                await raw_kafka.produce(workers.topic, b"before-%d" % partition, partition=partition)
            await until(lambda: len(workers.seen) == 4)
        left = await workers.membership()
        assert (left.state, len(left.members)) == ("Stable", 2)  # it has said no goodbye
        for partition in range(4):
            await raw_kafka.produce(workers.topic, b"between-%d" % partition, partition=partition)
        async with workers.app("a").running() as again:
            await again.ready()
            await until(lambda: len(workers.seen) == 8)
    assert set(workers.assigned["a-2"]) == set(workers.assigned["a-1"])
    assert len(workers.assigned["b-0"]) == 6  # it was told of no rebalance
    assert sorted(value for _, value in workers.seen) == sorted(b"%s-%d" % (when, n) for when in (b"before", b"between") for n in range(4))


async def test_a_second_worker_with_the_id_ends_the_first_with_one_sentence_and_nothing_is_lost(
    raw_kafka: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(raw_kafka, await raw_kafka.new_topic())
    workers.is_blocked.add(b"slow")
    source = TopicPartition(workers.topic, 0)
    running = asyncio.create_task(run(workers.app("one")))
    await raw_kafka.produce(workers.topic, b"done", b"slow")
    await until(lambda: b"slow" in workers.begun)
    async with workers.app("one").running() as later:
        await later.ready()
        (ended,) = await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), PATIENCE)
        assert isinstance(ended, AckwiseError)
        assert str(ended) == (
            f"another worker has joined group {workers.group!r} with group_instance_id 'one', so this one stops; what it has not committed "
            "is delivered to that worker: give each worker its own id"
        )
        await until(lambda: workers.begun.count(b"slow") == 2)
        assert workers.seen == [("one-0", b"done")]  # the first was called off
        assert (await raw_kafka.committed(workers.group))[source] == 1
        workers.is_blocked.clear()
        await until(lambda: len(workers.seen) == 2)
    assert workers.seen == [("one-0", b"done"), ("one-1", b"slow")]
    assert (await raw_kafka.committed(workers.group))[source] == 2
    said = [line for line in caplog.messages if ".relay because it is rebalancing" not in line]  # the relays are no static members
    assert [line for line in said if "Heartbeat" in line or "has not committed" in line] == []


APP = """
import asyncio, os
from ackwise import App

app = App("{group}", brokers="{brokers}", session_timeout=30, commit_interval=0)

@app.agent("{topic}", max_batch=1)
async def handle(value: bytes) -> None:
    with open("seen", "ab") as seen:
        seen.write(value + b"\\n")
"""


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`ackwise run` of the app in `folder`, under the id of a pod; killed at the end if it has not ended."""
    words = [sys.executable, "-m", "ackwise.plugin.cli", "run", "static_shop:app", *options]
    environ = os.environ | {"ACKWISE_GROUP_INSTANCE_ID": "pod-0"}
    with subprocess.Popen(words, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def seen_in(folder: Path) -> list[str]:
    """What its handler was given."""
    return (folder / "seen").read_text().split() if (folder / "seen").exists() else []


@pytest.mark.nightly
@pytest.mark.slow  # starts processes, and restarts them one by one
async def test_several_processes_of_one_command_are_members_of_their_own_also_when_they_are_restarted_one_by_one(
    raw_kafka: RawKafka, tmp_path: Path
) -> None:
    topic, group = await raw_kafka.new_topic(2), raw_kafka.new_group()
    (tmp_path / "static_shop.py").write_text(APP.format(group=group, brokers=raw_kafka.bootstrap, topic=topic))
    with started(tmp_path, "--workers", "2") as supervisor:
        assert supervisor.stderr is not None
        for partition in range(2):
            await raw_kafka.produce(topic, b"before-%d" % partition, partition=partition)
        await until(lambda: len(seen_in(tmp_path)) == 2)  # the group has a coordinator by now
        async with asyncio.timeout(PATIENCE):
            while len((before := await membership_of(raw_kafka, group)).members) != 2 or before.state != "Stable":  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        supervisor.send_signal(signal.SIGHUP)
        said = ""
        while "all worker processes were restarted" not in said:
            said = await asyncio.wait_for(asyncio.to_thread(supervisor.stderr.readline), PATIENCE)
            assert said, "the supervisor has ended"
        for partition in range(2):
            await raw_kafka.produce(topic, b"after-%d" % partition, partition=partition)
        await until(lambda: len(seen_in(tmp_path)) == 4)
        after = await membership_of(raw_kafka, group)
        supervisor.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.to_thread(supervisor.communicate), PATIENCE)
        assert supervisor.returncode == 0
    assert (after.state, len(after.members)) == ("Stable", 2)
    assert {owner.id for owner in after.owners.values()}.isdisjoint(owner.id for owner in before.owners.values())  # new processes


async def test_partitions_that_came_while_a_static_worker_was_away_are_given_out(
    raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staticmember, "_LOOK_EVERY", 0.2)
    workers = Workers(raw_kafka, await raw_kafka.new_topic())
    async with workers.app("one").running() as running:
        await running.ready()
    admin = AIOKafkaAdminClient(bootstrap_servers=raw_kafka.bootstrap)
    await admin.start()
    await admin.create_partitions({workers.topic: NewPartitions(2)})
    await admin.close()
    async with workers.app("one").running() as running:  # it gets what it had, and its group has nobody who leads
        await running.ready()
        await raw_kafka.produce(workers.topic, b"new", partition=1)
        await until(lambda: workers.seen)
    assert [value for _, value in workers.seen] == [b"new"]


def test_each_process_of_several_workers_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKER_NUMBER", raising=False)
    assert instance_of_this_process("pod-0") == "pod-0"
    monkeypatch.setenv("WORKER_NUMBER", "2")
    assert instance_of_this_process("pod-0") == "pod-0-2"
    assert instance_of_this_process("") is None
