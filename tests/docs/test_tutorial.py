"""The tutorial as a whole: its files are written, its commands typed one after the other, on a Kafka of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.docs.pages import snippets

PAGE = "docs/tutorial.md"

#: Done already, and done in another terminal.
ELSEWHERE = ["pip install '.[demo,java]'\n", "python broker.py\n"]

RECONCILE = "ackwise reconcile events\n"

WORKER = "ackwise run billing:app &\n"


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for snippet in snippets(PAGE):
        if snippet.file is not None:
            (tmp_path / snippet.file).write_text(snippet.code, "utf-8")
    return tmp_path


@pytest.fixture
def brokers(folder: Path) -> Iterator[str]:
    """What broker.py prints."""
    broker = subprocess.Popen([sys.executable, "broker.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    address = broker.stdout.readline().strip().removeprefix("export ACKWISE_BROKERS=")
    if not address and os.environ.get("CI") != "true":
        pytest.skip("needs a real Kafka: broker.py could not start one")
    yield address
    broker.communicate("\n")
    assert broker.returncode == 0


@pytest.fixture
def terminal(folder: Path, brokers: str) -> Iterator[Terminal]:
    terminal = Terminal(folder, ACKWISE_BROKERS=brokers)
    yield terminal
    terminal.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow
def test_everything_that_the_tutorial_says_comes_true(folder: Path, terminal: Terminal) -> None:
    def ledger() -> list[str]:
        path = folder / "ledger.txt"
        return path.read_text().splitlines() if path.exists() else []

    # What a reader waits for after a command, where that ends at once.
    waits = iter(
        [
            (WORKER, lambda: len(ledger()) == 2, "the first two orders are billed"),
            ("python shop.py 500\n", lambda: len(ledger()) > 100, "a hundred orders are billed"),
            (WORKER, lambda: len({*ledger()}) == 502, "all orders are billed"),
        ]
    )
    following = next(waits, None)
    typed: dict[str, tuple[str, int]] = {}
    said = ""
    for snippet in snippets(PAGE):
        if snippet.language == "text":
            assert said == snippet.code
        elif snippet.language == "bash" and snippet.code not in ELSEWHERE:
            said, code = typed[snippet.code] = terminal.type(snippet.code)
            assert code == 0 or snippet.code == RECONCILE
            if following and following[0] == snippet.code:
                wait_until(*following[1:])
                following = next(waits, None)

    assert following is None
    counted, *repeated = next(said for command, (said, _) in typed.items() if command.startswith("cut ")).splitlines()
    assert int(counted) == 502
    assert len(repeated) <= 10
    (run,) = (path for path in (folder / "events" / "runs").iterdir() if not path.name.startswith("."))
    assert (run / "report.html").read_text("utf-8").startswith("<!")
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert {name: summary["verdicts"][name] for name in ("DEAD_LETTERED", "DUPLICATE_SUPPRESSED")} == {
        "DEAD_LETTERED": 2,
        "DUPLICATE_SUPPRESSED": 1,
    }
    assert sum(summary["verdicts"].get(name, 0) for name in ("EXACTLY_ONCE", "MAYBE_TWICE", "MULTI_EXECUTED")) == 502
    assert typed[RECONCILE][1] == int(summary["verdicts"].get("MULTI_EXECUTED", 0) > 0)
