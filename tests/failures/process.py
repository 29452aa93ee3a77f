"""Worker processes, forked from one that has imported what they need: the imports take most of a second of a core."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([f"tests.failures.{name}" for name in ("worker", "modes.worker", "booking_process", "publishing_process")])


class WorkerProcess:
    """Starts with `main(*told)` at once. What it says is appended to the file `log`. It does not outlive this process."""

    def __init__(self, main: Callable[..., object], told: tuple[Any, ...], log: Path) -> None:
        self.log: Final = log
        self._process = _CONTEXT.Process(target=_work, args=(main, told, log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: Final = self._process.pid

    @property
    def returncode(self) -> int | None:
        """`None` while it lives, and minus the number of the signal that killed it."""
        return self._process.exitcode

    def said(self) -> str:
        """All that was said, by those as well that had the same log before."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Return its code once it has ended."""
        while (code := self.returncode) is None:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.02)
        return code

    async def gone(self) -> None:
        """Whatever became of it, nobody leaves it behind."""
        if self.returncode is None:
            self.kill()
        await self.wait()


def _work(main: Callable[..., object], told: tuple[Any, ...], log: Path) -> None:
    with log.open("ab") as file:
        for output in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), output.fileno())
    main(*told)
