"""Processes of the demo: workers and the reconciliation, each a Python of its own with a log."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ackwise.middleware.errors import AckwiseError

__all__ = ["DemoFailed", "Process", "run_to_end", "start"]


class DemoFailed(AckwiseError):
    """A stage of the demo could not be played to its end: no verdict at all."""


class Process:
    """One running process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    def check_alive(self) -> None:
        """Raises `DemoFailed` if the process ended by itself."""
        if (code := self._process.returncode) is not None:
            raise DemoFailed(f"the worker ended by itself with exit code {code}; it says why in {self.log}")

    async def kill(self) -> None:
        """SIGKILL: it gets no chance to say anything."""
        self._process.kill()
        await self._process.wait()

    async def drain(self, timeout: float) -> None:
        """SIGTERM, and at most `timeout` seconds to finish. Raises `DemoFailed` if it does not end with 0 in time."""
        self.check_alive()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            raise DemoFailed(f"the worker did not drain within {timeout:.0f} s; its log is {self.log}") from None
        if code != 0:
            raise DemoFailed(f"the worker ended with exit code {code} when asked to stop; it says why in {self.log}")

    async def wait(self) -> int:
        """Its exit code, once it ended."""
        return await self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None


@asynccontextmanager
async def start(*arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """`python -m` with `arguments`, killed at the end of the block if it still runs; what it prints goes to `log`."""
    with log.open("wb") as output:
        spawned = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # an interrupt from the keyboard is the demo's, which then ends its processes itself
        )
    process = Process(spawned, log)
    try:
        yield process
    finally:
        if process.is_running:
            await process.kill()


async def run_to_end(*arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> int:
    """`ackwise` with `arguments`; returns its exit code."""
    async with start("ackwise.plugin.cli", *arguments, log=log, environment=environment) as process:
        return await process.wait()
