"""`ackwise run --workers` with a real Kafka, whose group the processes share."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]  # waits for two worker processes to join, and to join again

WORKER = """
from pathlib import Path
from ackwise import App

app = App("several")

@app.agent("several-orders")
async def bill(value: str) -> None:
    Path(value).touch()
"""


@asynccontextmanager
async def running(folder: Path, kafka: RawKafka) -> AsyncIterator[asyncio.subprocess.Process]:
    """Two workers of the app, whose log goes to a file."""
    (folder / "worker.py").write_text(WORKER)
    command = ("-m", "ackwise.plugin.cli", "run", "worker:app", "--workers", "2", "--watch", "0")
    environment = {**os.environ, "ACKWISE_BROKERS": kafka.bootstrap}
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()  # its workers see that, and end
        await process.wait()


async def test_several_workers_are_kept_restarted_one_by_one_and_drained(tmp_path: Path, raw_kafka: RawKafka) -> None:
    def log() -> str:
        return (tmp_path / "log").read_text()

    def started() -> list[tuple[str, int]]:
        return [(number, int(pid)) for number, pid in re.findall(r"a worker process was started: worker=(\d) pid=(\d+)", log())]

    await raw_kafka.create("several-orders")
    async with running(tmp_path, raw_kafka) as supervisor:
        await until(lambda: log().count("ackwise: running: group=several ") >= 2)
        assert len(set(re.findall(r"http://127.0.0.1:\d+", log()))) == 2
        os.kill(started()[0][1], signal.SIGKILL)
        await until(lambda: len(started()) == 3)
        assert "worker process ended: worker=" in log()
        supervisor.send_signal(signal.SIGHUP)
        await until(lambda: "all worker processes were restarted" in log())
        assert [number for number, _ in started()[3:]] == ["1", "2"]
        await raw_kafka.produce("several-orders", b"billed")
        await until((tmp_path / "billed").exists)
        supervisor.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await supervisor.wait() == 0
    for _, pid in started():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
