"""The tutorial as a whole: its files are written, its commands typed one after the other, on its own Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import snippets
from tests.docs.terminal import Terminal, kafka_of, wait_until

PAGE = "docs/tutorial.md"

#: Done already, and done in another terminal.
ELSEWHERE = ["pip install '.[demo,java]'\n", "python broker.py\n"]

RECONCILE = "ackwise reconcile events\n"

WORKER = "ackwise run billing:app &\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for snippet in snippets(PAGE):
        if snippet.file is not None:
            (tmp_path / snippet.file).write_text(snippet.code, "utf-8")
    return tmp_path


@pytest.fixture
def brokers(folder: Path) -> Iterator[str]:
    with kafka_of(folder) as address:
        yield address


@pytest.fixture
def terminal(folder: Path, brokers: str) -> Iterator[Terminal]:
    terminal = Terminal(folder, ACKWISE_BROKERS=brokers)
    yield terminal
    terminal.close()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow  # types every command of the tutorial and waits for what it does
@pytest.mark.nightly
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
    assert summary["ambiguous"] <= 10
    assert typed[RECONCILE][1] == int(summary["verdicts"].get("MULTI_EXECUTED", 0) > 0)
