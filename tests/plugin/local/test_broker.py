"""A local Kafka keeps its data and its port through whatever is done to it, and never outlives its owner."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.local import localkafka
from ackwise.plugin.local.localkafka import EmbeddedBroker, LocalKafka, embedded_broker, local_kafka

OWNER = """
import sys, time
from pathlib import Path
from ackwise.plugin.local.localkafka import local_kafka
with local_kafka(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it is stopped, killed and frozen here."""
    return own_kafka


async def interrupt(kafka: LocalKafka, how: str) -> None:
    match how:
        case "stop":
            await asyncio.to_thread(kafka.stop)
        case "kill":
            await asyncio.to_thread(kafka.kill)
        case "pause":
            kafka.pause()


async def go_on(kafka: LocalKafka, how: str) -> None:
    if how == "pause":
        kafka.resume()
    else:
        await asyncio.to_thread(kafka.start)


@pytest.mark.slow  # waits for a broker that is interrupted and goes on
@pytest.mark.parametrize("how", ["kill", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("stop", "pause"))])
async def test_what_was_acknowledged_is_still_there_after_an_interruption(kafka: LocalKafka, raw_kafka: RawKafka, how: str) -> None:
    topic, group, bootstrap = await raw_kafka.new_topic(), raw_kafka.new_group(), kafka.bootstrap
    await raw_kafka.produce(topic, b"a", b"b")
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    record = await consumer.getone()
    await consumer.commit()
    await consumer.stop()

    await interrupt(kafka, how)
    try:
        with pytest.raises(OSError, match=r"refused|timed out"):
            ask(bootstrap)
    finally:
        await go_on(kafka, how)

    assert kafka.bootstrap == bootstrap
    assert [found.value for found in await raw_kafka.records(topic)] == [b"a", b"b"]
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group) as again, asyncio.timeout(PATIENCE):
        # while the coordinator loads the group, aiokafka answers that nothing was committed
        while (offset := await again.committed(TopicPartition(topic, record.partition))) is None:  # noqa: ASYNC110  # a broker has no events
            await asyncio.sleep(0.1)
    assert offset == record.offset + 1


def ask(bootstrap: str) -> bytes:
    """The broker's answer to the smallest request of Kafka's protocol, which names its own versions."""
    host, _, port = bootstrap.partition(":")
    request = bytes.fromhex("0012 0000 00000007 0000")  # ApiVersions, version 0, correlation 7, client id ""
    with socket.create_connection((host, int(port)), timeout=0.5) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        return connection.recv(8)


async def test_a_topic_is_not_created_by_writing_to_it(kafka: LocalKafka, raw_kafka: RawKafka) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, request_timeout_ms=300) as producer:
        with pytest.raises(KafkaError):
            await producer.send("nobody-made-this", b"x")
    assert "nobody-made-this" not in await raw_kafka.topics()


@pytest.mark.kafka
@pytest.mark.slow  # starts a broker in a process that is killed
@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_broker_whose_owner_dies_dies_as_well(tmp_path: Path, kafka: LocalKafka, end: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path / "kafka"], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        (broker,) = brokers_in(tmp_path)
        owner.send_signal(end)
    wait_until(lambda: brokers_in(tmp_path) == [], f"process {broker} outlives its owner")


def brokers_in(folder: Path) -> list[int]:
    """The processes whose working folder is in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = (process / "cwd").readlink().is_relative_to(folder)
        except OSError:
            continue
        if inside:
            found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


class Impostor:
    """Stands for Java in a broker's command: a script that says something and ends, or goes on."""

    def __init__(self, folder: Path, script: str) -> None:
        self.executable = folder / "java"
        self.executable.write_text(f"#!/bin/sh\ncase $* in *StorageTool*) exit 0;; esac\necho start >> {folder}/starts\n{script}\n")
        self.executable.chmod(0o755)
        self._starts = folder / "starts"

    @property
    def starts(self) -> int:
        return len(self._starts.read_text().splitlines())


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Impostor]:
    def make(script: str) -> Impostor:
        java = Impostor(tmp_path, script)
        monkeypatch.setattr(localkafka, "find_java", lambda: java)
        monkeypatch.setattr(localkafka, "kafka_jars", lambda java, say: tmp_path)
        return java

    return make


@pytest.mark.slow  # starts scripts in the place of Java
def test_a_second_broker_in_the_folder_of_one_that_runs_is_refused(tmp_path: Path, impostor: Callable[[str], Impostor]) -> None:
    java = impostor("echo Kafka Server started; exec cat")
    with local_kafka(tmp_path / "k") as broker:
        with pytest.raises(ConfigurationError, match="another local Kafka runs in"), local_kafka(tmp_path / "k"):
            pass
        broker.restart()
    with local_kafka(tmp_path / "k"):
        assert java.starts == 3


@pytest.mark.slow  # starts a script that ends at once
def test_a_broker_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path, impostor: Callable[[str], Impostor]) -> None:
    java = impostor("echo disk on fire; exit 3")
    with pytest.raises(Unavailable, match=r"(?s)ended with code 3; .*broker\.log ends with:\ndisk on fire"), local_kafka(tmp_path / "k"):
        pass
    assert java.starts == 1


@pytest.mark.slow  # starts a script in the place of Java, twice
def test_a_port_that_somebody_took_meanwhile_is_exchanged(tmp_path: Path, impostor: Callable[[str], Impostor]) -> None:
    taken = "echo Address already in use; exit 1"
    java = impostor(f'[ "$(wc -l < {tmp_path}/starts)" = 1 ] && {{ {taken}; }}; cp server.properties ready; echo Kafka Server started; cat')
    with local_kafka(tmp_path / "k") as broker:
        assert f"PLAINTEXT://{broker.bootstrap}," in (tmp_path / "k" / "ready").read_text()
    assert java.starts == 2


@pytest.mark.slow  # starts a script five times
def test_after_a_few_ports_it_is_given_up(tmp_path: Path, impostor: Callable[[str], Impostor]) -> None:
    java = impostor("echo Address already in use; exit 1")
    with pytest.raises(Unavailable, match="Address already in use"), local_kafka(tmp_path / "k"):
        pass
    assert java.starts == 5


@pytest.mark.slow  # starts a script that hangs
def test_a_broker_that_hangs_is_given_up_and_killed(
    tmp_path: Path, impostor: Callable[[str], Impostor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localkafka, "_START_TIMEOUT", 0.2)
    impostor("exec sleep 600")
    with pytest.raises(Unavailable, match="was not ready after 0 s"), local_kafka(tmp_path / "k"):
        pass
    assert brokers_in(tmp_path) == []


@pytest.mark.slow  # starts a script that ignores signals
def test_a_broker_that_will_not_stop_is_killed(
    tmp_path: Path, impostor: Callable[[str], Impostor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localkafka, "_STOP_TIMEOUT", 0.1)
    impostor("trap '' TERM; echo Kafka Server started; while :; do sleep 1; done")
    with local_kafka(tmp_path / "k") as broker:
        assert len(brokers_in(tmp_path)) >= 1
        broker.stop()
        with pytest.raises(ConfigurationError, match="does not run; start it first"):
            broker.pause()


def test_ports_are_none_that_a_client_may_be_given_for_its_own_end() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(localkafka._free_ports(50)) < lowest


async def test_an_embedded_broker_takes_and_gives_records(embedded_broker: EmbeddedBroker) -> None:
    async with AIOKafkaProducer(bootstrap_servers=embedded_broker.bootstrap) as producer:
        await producer.send_and_wait("embedded", b"x", partition=3)
    async with AIOKafkaConsumer("embedded", bootstrap_servers=embedded_broker.bootstrap, auto_offset_reset="earliest") as consumer:
        assert (await consumer.getone()).value == b"x"


def test_an_embedded_broker_is_gone_afterwards() -> None:
    with embedded_broker() as broker:
        assert ask(broker.bootstrap)[4:] == (7).to_bytes(4, "big")
    with pytest.raises(ConnectionRefusedError):
        ask(broker.bootstrap)


def test_without_confluent_kafka_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ackwise\[demo\]'"), embedded_broker():
        pass
