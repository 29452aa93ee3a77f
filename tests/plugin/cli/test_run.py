from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.databases.server import free_port

from ackwise.plugin.local.localkafka import EmbeddedBroker
from ackwise.plugin.settings.hostsettings import HostSettings

pytestmark = [pytest.mark.embedded, pytest.mark.slow]  # each starts `ackwise run` in a process

WORKER = """
import asyncio, os
from pathlib import Path
from ackwise import App

app = App(os.environ["GROUP"], brokers=os.environ["BROKERS"], create_topics="broker")

@app.agent(os.environ["GROUP"] + "-orders")
async def bill(value: str) -> None:
    if value == "exit":
        raise SystemExit(7)
    if value == "hang":
        Path("hanging").touch()
        await asyncio.sleep(3600)
    Path(value).touch()
"""


@contextmanager
def worker(folder: Path, broker: EmbeddedBroker, group: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "worker.py").write_text(WORKER)
    environment = {**os.environ, "BROKERS": broker.bootstrap, "GROUP": group}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "ackwise.plugin.cli", "run", "worker:app", *options]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def send(broker: EmbeddedBroker, group: str, *values: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(f"{group}-orders", value.encode(), partition=0)
    assert producer.flush(30) == 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_signal_drains_and_ends_with_0(tmp_path: Path, embedded_broker: EmbeddedBroker, number: signal.Signals) -> None:
    group = f"drain-{number.name}"
    send(embedded_broker, group, "billed")
    with worker(tmp_path, embedded_broker, group) as process:
        wait_until((tmp_path / "billed").exists)
        process.send_signal(number)
        assert process.wait(60) == 0


def test_a_second_signal_does_not_wait_for_the_drain(tmp_path: Path, embedded_broker: EmbeddedBroker) -> None:
    send(embedded_broker, "impatient", "hang")
    with worker(tmp_path, embedded_broker, "impatient") as process:
        wait_until((tmp_path / "hanging").exists)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stop requested" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert time.monotonic() - started < HostSettings("localhost:9092", "billing").drain_timeout
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_exit_of_a_handler_is_the_exit_of_the_process(tmp_path: Path, embedded_broker: EmbeddedBroker) -> None:
    send(embedded_broker, "exiting", "exit")
    with worker(tmp_path, embedded_broker, "exiting") as process:
        assert process.wait(60) == 7


def test_what_no_worker_can_start_with_is_told_and_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("from ackwise import App\napp = App('nothing')\n")
    command = [sys.executable, "-m", "ackwise.plugin.cli", "run", "worker:app", "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "has no agents" in done.stderr
    assert "worker process could not start" in done.stderr


def test_the_pages_of_a_worker_are_on_the_port_that_its_command_line_names(tmp_path: Path, embedded_broker: EmbeddedBroker) -> None:
    port = free_port()
    with worker(tmp_path, embedded_broker, "watched", "--watch", str(port)) as process:
        wait_until(lambda: answer(port, "/ready") == "ready\n")
        assert "ackwise_ready" in answer(port, "/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def answer(port: int, path: str) -> str:
    """What the page says; nothing while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as page:
            return str(page.read().decode())
    except OSError:
        return ""
