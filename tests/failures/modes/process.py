"""Worker process of a trial, forked from one that has imported what it needs: the imports take most of a second of a core."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from pathlib import Path
from typing import Any, Final

from tests.failures.modes.worker import main

__all__ = ["WorkerProcess"]

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([main.__module__])


class WorkerProcess:
    """Begins at once. What it says is appended to the file `log`. It does not outlive this process."""

    def __init__(self, told: dict[str, Any], log: Path) -> None:
        self._process = _CONTEXT.Process(target=main, args=(told, log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: Final = self._process.pid

    @property
    def returncode(self) -> int | None:
        """`None` while it lives, and minus the number of the signal that killed it."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> None:
        while self.returncode is None:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.02)
