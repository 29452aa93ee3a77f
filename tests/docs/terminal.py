"""A terminal, in which a page's commands are typed, and the Kafka that its file `broker.py` starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Terminal:
    """A shell in a folder, in which commands are typed."""

    def __init__(self, folder: Path, **environment: str) -> None:
        paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        environment = {**os.environ, **paths, **environment}
        with (folder / "stderr.log").open("wb") as errors:
            self._shell = subprocess.Popen(
                ["bash"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def type(self, commands: str) -> tuple[str, int]:
        """Run commands to their end; returns what they printed and the exit code of the last one."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{commands}\ncode=$?; echo; echo end of commands $code\n")
        self._shell.stdin.flush()
        printed = ""
        for line in self._shell.stdout:
            if line.startswith("end of commands "):
                return printed.removesuffix("\n"), int(line.split()[-1])
            printed += line
        raise AssertionError(f"the shell ended while it ran {commands!r}")

    def close(self) -> None:
        """Leave the shell; what it still runs is killed."""
        self._shell.communicate("kill -9 $(jobs -p) 2>&-\n")


@contextmanager
def kafka_of(folder: Path) -> Iterator[str]:
    """What broker.py prints."""
    broker = subprocess.Popen([sys.executable, "broker.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    address = broker.stdout.readline().strip().removeprefix("export ACKWISE_BROKERS=")
    if not address and os.environ.get("CI") != "true":
        pytest.skip("needs a real Kafka: broker.py could not start one")
    yield address
    broker.communicate()  # its input ends
    assert broker.returncode == 0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)
