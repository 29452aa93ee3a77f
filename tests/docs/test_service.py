"""The page of a service as a whole: its files are written, its commands typed one after the other, on its own Kafka.

`pytest -s` prints how long each command took.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
from tests.databases.server import free_port
from tests.docs.pages import CHECKOUT, snippets
from tests.docs.terminal import Terminal, kafka_of, wait_until
from tests.tables import each

PAGE = "docs/service.md"

#: Done already, and done in another terminal.
ELSEWHERE = ["pip install '.[watch,demo,java]' fastapi uvicorn\n", "python broker.py\n"]

STATUS = "ackwise status service:app\n"

LIST = "ackwise dlq list service:app\n"


@pytest.fixture
def ports() -> dict[str, int]:
    """Those of the page may be taken here."""
    return {"8000": free_port(), "9464": free_port()}


@pytest.fixture
def said(ports: dict[str, int]) -> Callable[[str], str]:
    """What the page says, with the ports that are free."""

    def of(text: str) -> str:
        for port, free in ports.items():
            text = text.replace(port, str(free))
        return text

    return of


@pytest.fixture
def folder(tmp_path: Path, said: Callable[[str], str]) -> Path:
    for snippet in snippets(PAGE):
        if snippet.file is not None:
            (tmp_path / snippet.file).write_text(said(snippet.code), "utf-8")
    return tmp_path


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    with kafka_of(folder) as address:
        terminal = Terminal(folder, ACKWISE_BROKERS=address)
        yield terminal
        terminal.close()


@pytest.mark.kafka
@pytest.mark.slow  # types every command of the page and waits for what it does
@pytest.mark.nightly
def test_everything_that_the_page_of_a_service_says_comes_true(
    folder: Path, terminal: Terminal, ports: dict[str, int], said: Callable[[str], str]
) -> None:
    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://localhost:{ports['8000']}/ready") as answer:
                return bool(answer.status == 200)
        except URLError:
            return False

    def metrics() -> str:
        with urllib.request.urlopen(f"http://localhost:{ports['9464']}/metrics") as answer:
            return str(answer.read().decode())

    def ledger() -> list[str]:
        return (folder / "ledger.txt").read_text().splitlines() if (folder / "ledger.txt").exists() else []

    # What a reader waits for after a command, where that ends at once.
    waits: list[tuple[str, Callable[[], bool], str]] = [
        ("uvicorn ", is_ready, "the service is ready"),
        ("curl -s localhost:8000/orders", lambda: "\nackwise_dead_letters_total{" in metrics(), "the watch is a dead letter"),
        ("sed ", is_ready, "the service is ready again"),
        ("ackwise dlq redrive service:app --yes", lambda: len(ledger()) == 2, "the watch is billed"),
    ]
    typed: list[tuple[str, str, float]] = []
    for snippet in snippets(PAGE):
        if snippet.language == "text":
            assert typed[-1][1] == snippet.code
        elif snippet.language == "bash" and snippet.code not in ELSEWHERE:
            begun = time.monotonic()
            printed, code = terminal.type(said(snippet.code))
            finds = snippet.code in (STATUS, LIST) and len(ledger()) == 1  # a letter that is open
            assert code == finds, (snippet.code, printed, (folder / "stderr.log").read_text()[-2000:])
            if waits and snippet.code.startswith(waits[0][0]):
                wait_until(*waits.pop(0)[1:])
            typed.append((snippet.code, printed, time.monotonic() - begun))
    sys.stdout.writelines(f"{seconds:6.1f} s  {commands.splitlines()[0]}\n" for commands, _, seconds in typed)

    assert waits == []
    first, last = (printed for commands, printed, _ in typed if commands == LIST)
    assert "KeyError" in first
    assert [_counts(printed) for printed in (first, last)] == [("1", "0", "0"), ("0", "1", "0")]
    (status,) = (printed for commands, printed, _ in typed if commands == STATUS)
    assert "ackwise dlq list" in status
    assert "ready" in next(printed for commands, printed, _ in typed if commands.endswith("/ready\n"))


def _counts(printed: str) -> tuple[str, ...]:
    """How many letters are open, redriven and dropped, by the only cause in the table."""
    *_, line = printed.splitlines()
    return tuple(line.split()[-6:-3])


#: A Kafka that is there at once, in place of the real one.
INSTANT = """
import contextlib, runpy, types
import ackwise.testing

@contextlib.contextmanager
def instant(folder):
    yield types.SimpleNamespace(bootstrap="127.0.0.1:9")

ackwise.testing.local_kafka = instant
runpy.run_path("broker.py")
"""


@each("page", [PAGE, "docs/tutorial.md"])
def test_the_kafka_of_a_page_ends_without_a_traceback_when_its_input_ends_or_by_ctrl_c(tmp_path: Path, page: str) -> None:
    (broker,) = (snippet for snippet in snippets(page) if snippet.file == "broker.py")
    (tmp_path / "broker.py").write_text(broker.code, "utf-8")
    command = [sys.executable, "-c", INSTANT]
    ended = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.splitlines()[0], ended.stderr) == (0, "export ACKWISE_BROKERS=127.0.0.1:9", "")
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as typed:
        assert typed.stdout is not None
        assert typed.stdout.readline() == "export ACKWISE_BROKERS=127.0.0.1:9\n"
        typed.send_signal(signal.SIGINT)
        assert typed.communicate(timeout=60)[1] == ""
    assert typed.returncode == 0


@each("page", [PAGE, "docs/tutorial.md"])
def test_a_page_that_starts_a_kafka_installs_what_fetches_it(page: str) -> None:
    """Kafka's files come by the Ivy that PySpark has in it, and run on Java."""
    (install,) = (snippet.code for snippet in snippets(page) if snippet.code.startswith("pip install"))
    assert {"demo", "java"} <= {*install[install.index("[") + 1 : install.index("]")].split(",")}


def test_the_alert_that_the_page_names_is_about_the_counter_that_it_shows() -> None:
    rules = (CHECKOUT / "docs/watch/alerts.yml").read_text("utf-8")
    (expression,) = (rule.split("labels:")[0] for rule in rules.split("- alert: ") if rule.startswith("AckwiseDeadLetters\n"))
    assert "ackwise_dead_letters_total" in expression
