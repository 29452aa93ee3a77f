"""Instances that broadcast where things go wrong: what was not committed runs again, and nothing is passed over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import GroupAuthorizationFailedError, IncompatibleBrokerVersion
from tests.plugin.modes.broadcast.instances import FileOf, Instance
from tests.waiting import PATIENCE

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.events import EventCode
from ackwise.plugin.modes import broadcasting
from ackwise.testing import MemoryKafka

#: Commits after the first, which says where it starts, do not come while a test lasts.
SELDOM: dict[str, Any] = {"commit_interval": 3600.0}

SOON: dict[str, Any] = {"client_options": {"metadata_max_age_ms": 100}}


async def test_what_was_done_and_not_committed_before_a_kill_runs_again(kafka: MemoryKafka, file_of: FileOf) -> None:
    one = await Instance(kafka, "web-1", file_of("web-1"), **SELDOM).__aenter__()
    await one.until(lambda: len(one.committed()) == 2)
    kafka.produce("changes", b"a", b"b")
    await one.until(lambda: len(one.codes(EventCode.SUCCEEDED)) == 2)
    await one.kill(kafka)
    kafka.produce("changes", b"c")
    async with Instance(kafka, "web-1", file_of("web-1")) as again:
        await again.until(lambda: again.seen == [b"a", b"b", b"c"])


async def test_while_the_broker_is_away_nothing_is_passed_over(kafka: MemoryKafka, file_of: FileOf) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        kafka.produce("changes", b"before")
        await one.until(lambda: one.seen == [b"before"])
        await kafka.stop()
        kafka.produce("changes", b"meanwhile")
        await kafka.start()
        kafka.produce("changes", b"after")
        await one.until(lambda: sorted(set(one.seen)) == [b"after", b"before", b"meanwhile"])
        await one.until(lambda: one.committed().get(0) == 3)


async def test_a_broker_that_is_away_at_the_start_is_waited_for(
    kafka: MemoryKafka, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.startup._START_AGAIN", 0.05)
    await kafka.stop()
    one = Instance(kafka, "web-1", file_of("web-1"))
    starting = asyncio.create_task(one.__aenter__())
    await asyncio.wait({starting}, timeout=0.2)
    await kafka.start()
    await starting
    kafka.produce("changes", b"a")
    await one.until(lambda: one.seen == [b"a"])
    await one.__aexit__()


async def widen(kafka: MemoryKafka, topic: str, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_partitions({topic: NewPartitions(partitions)})
    await admin.close()


async def test_a_partition_that_is_new_is_read_from_its_beginning_also_if_it_was_made_while_the_instance_was_away(
    kafka: MemoryKafka, file_of: FileOf
) -> None:
    async with Instance(kafka, "web-1", file_of("web-1"), **SOON) as one:
        await one.until(lambda: len(one.committed()) == 2)
        kafka.produce("changes", b"old")
        await one.until(lambda: one.seen == [b"old"])
        await widen(kafka, "changes", 4)
        for partition in (2, 3):
            kafka.produce("changes", b"new", partition=partition)
        await one.until(lambda: one.seen == [b"old", b"new", b"new"])
        kafka.produce("changes", b"on", partition=1)
        await one.until(lambda: one.seen[-1] == b"on")
    await widen(kafka, "changes", 5)
    kafka.produce("changes", b"newer", partition=4)
    async with Instance(kafka, "web-1", file_of("web-1")) as again:
        await again.until(lambda: again.seen == [b"newer"])
    assert one.seen == [b"old", b"new", b"new", b"on"]


async def test_two_instances_of_one_name_are_refused(kafka: MemoryKafka, file_of: FileOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasting, "_SESSIONS", 0.05)
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        await one.until(lambda: len(one.committed()) == 2)
        with pytest.raises(ConfigurationError, match=r"is running at .* already|another worker has it"):
            await Instance(kafka, "web-1", file_of("web-1")).__aenter__()
        for partition in (0, 1):
            kafka.produce("changes", b"a", partition=partition)
        await one.until(lambda: one.seen == [b"a", b"a"])


async def test_a_group_that_kafka_refuses_is_a_sentence(kafka: MemoryKafka) -> None:
    kafka.faults.refuse("DescribeGroups", GroupAuthorizationFailedError, times=None)
    with pytest.raises(AckwiseError, match=r"Kafka refuses this worker of group 'cache@web-1'"):
        await Instance(kafka, "web-1").__aenter__()


async def test_brokers_that_know_no_such_question_are_not_asked(kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object) -> None:
        raise IncompatibleBrokerVersion

    monkeypatch.setattr(AIOKafkaAdminClient, "describe_consumer_groups", unknown)
    async with Instance(kafka, "web-1") as one:
        kafka.produce("changes", b"a")
        await one.until(lambda: one.seen == [b"a"])


async def test_of_two_instances_of_one_name_that_start_together_one_goes_on(kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    async def alone(self: broadcasting.OwnGroup, member: object) -> None: ...

    monkeypatch.setattr(broadcasting.OwnGroup, "_require_alone", alone)
    monkeypatch.setattr(broadcasting, "_LOOK_AGAIN", 0.05)
    monkeypatch.setattr(broadcasting, "_SESSIONS", 0.05)
    both = [Instance(kafka, "web-1"), Instance(kafka, "web-1")]
    stops = [asyncio.create_task(instance.app.serve(instance._stop)) for instance in both]
    for instance, running in zip(both, stops, strict=True):
        instance.running = running
    async with asyncio.timeout(PATIENCE):
        ended, going_on = await asyncio.wait(stops, return_when=asyncio.FIRST_COMPLETED)
    (loser,) = ended
    assert isinstance(loser.exception(), ConfigurationError)
    (survivor,) = (instance for instance in both if instance.running in going_on)
    await survivor.until(lambda: len(survivor.codes(EventCode.ASSIGNED)) >= 3)
    for partition in (0, 1):
        kafka.produce("changes", b"a", partition=partition)
    await survivor.until(lambda: survivor.seen == [b"a", b"a"])
    await survivor.__aexit__()


# The file


async def test_a_file_that_is_taken_away_is_written_anew(kafka: MemoryKafka, tmp_path: Path) -> None:
    file = tmp_path / "offsets"
    async with Instance(kafka, "web-1", file) as one:
        await one.until(file.exists)
        file.unlink()
        kafka.produce("changes", b"a")
        await one.until(lambda: one.seen == [b"a"] and file.exists())
    kafka.produce("changes", b"b")
    async with Instance(kafka, "web-1", file) as again:
        await again.until(lambda: again.seen == [b"b"])


async def test_while_its_folder_is_gone_the_instance_goes_on_and_commits_once_it_is_back(
    kafka: MemoryKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    async with Instance(kafka, "web-1", folder / "offsets") as one:
        await one.until(lambda: len(one.committed()) == 2)
        folder.rename(tmp_path / "away")
        kafka.produce("changes", b"a")
        await one.until(lambda: "commit failed" in caplog.text)
        assert one.committed()[0] == 0
        (tmp_path / "away").rename(folder)
        await one.until(lambda: one.committed()[0] == 1)
    assert one.seen == [b"a"]


async def test_positions_that_the_log_no_longer_has_begin_at_its_start_and_say_so(kafka: MemoryKafka, file_of: FileOf) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        kafka.produce("changes", b"a", b"b")
        await one.until(lambda: one.committed().get(0) == 2)
    kafka.produce("changes", b"c", b"d")
    kafka.log("changes").trim(3)
    async with Instance(kafka, "web-1", file_of("web-1")) as again:
        await again.until(lambda: again.seen == [b"d"])
    (jump,) = again.codes(EventCode.SEEK)
    assert (jump.offset, jump.range_end) == (2, 3)
