"""What `ackwise run` prints of the log, and what a program prints that configures nothing."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.log import Log
from ackwise.plugin.cli.run import AWAY_WITHIN, WITHIN, JsonLines, Repeats

WORKER = """
from ackwise import App

app = App("billing", brokers="127.0.0.1:1", start_timeout=0.1)

@app.agent("orders")
async def bill(value: bytes) -> None: ...
"""


@pytest.fixture
def printed() -> Iterator[io.StringIO]:
    """What the logger `ackwise.test` prints as JSON lines."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("ackwise.test")
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield stream
    logger.removeHandler(handler)
    logger.setLevel("NOTSET")


def lines(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_time_level_logger_event_and_fields(printed: io.StringIO) -> None:
    Log("ackwise.test").warning("something happened", topic="orders\nand more", partition=3, delay=0.5)
    (line,) = lines(printed)
    assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
    assert line == {
        "level": "warning",
        "logger": "ackwise.test",
        "event": "something happened",
        "fields": {"topic": "orders\nand more", "partition": 3, "delay": 0.5},
    }


def test_a_json_line_of_another_library_has_its_message_as_the_event(printed: io.StringIO) -> None:
    logging.getLogger("ackwise.test").error("%d ways", 3)
    (line,) = lines(printed)
    assert (line["event"], line["fields"]) == ("3 ways", {})


def test_a_traceback_stays_on_its_line(printed: io.StringIO) -> None:
    try:
        raise KeyError("k")
    except KeyError as error:
        Log("ackwise.test").debug("what the handler raised", raised=error)
    (line,) = lines(printed)
    assert line["traceback"].endswith("KeyError: 'k'")


def python(code: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr


class Told:
    """What passes the filter, said at `seconds` on its clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._filter = Repeats(lambda: self.seconds)

    def say(self, message: str, *arguments: object, logger: str = "aiokafka.cluster") -> str | None:
        record = logging.LogRecord(logger, logging.ERROR, "cluster.py", 1, message, arguments, None)
        return record.getMessage() if self._filter.filter(record) else None


def test_the_same_line_of_the_kafka_client_is_printed_once_in_a_while_and_counts_what_was_left_out() -> None:
    told = Told()
    assert told.say("Topic %s not found", "orders") == "Topic orders not found"
    assert {told.say("Topic %s not found", "orders") for _ in range(1234)} == {None}
    assert told.say("Topic %s not found", "mails") == "Topic mails not found"
    told.seconds = WITHIN
    assert told.say("Topic %s not found", "orders") == "Topic orders not found (left out since it was last printed: 1,234)"
    assert told.say("Topic %s not found", "orders") is None
    told.seconds = 3 * WITHIN
    assert told.say("Topic %s not found", "mails") == "Topic mails not found"


def test_all_that_says_that_a_broker_is_away_is_one_line_a_minute() -> None:
    told = Told()
    lines = (
        "Unable connect to node with id %s: %s",
        "Failed fetch messages from %s: %s",
        "Heartbeat send request failed: %s. Will retry.%s",
    )
    said = [told.say(line, number, "refused") for number in range(100) for line in lines]
    assert [line for line in said if line is not None] == ["Unable connect to node with id 0: refused"]
    told.seconds = AWAY_WITHIN
    assert told.say(lines[1], 1, "refused") == "Failed fetch messages from 1: refused (left out since it was last printed: 299)"


def test_a_line_with_a_percent_sign_is_printed_as_it_is() -> None:
    told = Told()
    assert told.say("100 %s full", "% of it") == "100 % of it full"
    assert told.say("100 %s full", "% of it") is None
    told.seconds = WITHIN
    assert told.say("100 %s full", "% of it") == "100 % of it full (left out since it was last printed: 1)"


def test_lines_of_other_loggers_are_never_left_out() -> None:
    told = Told()
    assert [told.say("held", logger=logger) for logger in ("ackwise", "ackwise", "aiokafkas", "aiokafkas")] == ["held"] * 4


def test_however_many_different_lines_there_are_those_of_late_are_remembered() -> None:
    told = Told()
    assert all(told.say("line %d", number) for number in range(5000))
    assert told.say("line %d", 4999) is None
    assert told.say("line %d", 0) == "line 0"


REPEATING = """
import logging
from ackwise.plugin.cli.run import print_log
print_log("info", "text")
for _ in range(1000):
    logging.getLogger("aiokafka.cluster").error("Topic %s not found in cluster metadata", "orders")
    logging.getLogger("aiokafka").error("the same")
"""


@pytest.mark.slow  # starts a process that logs the same line again and again
def test_ackwise_run_prints_a_line_of_the_kafka_client_once_though_it_comes_a_thousand_times(tmp_path: Path) -> None:
    first, second = python(REPEATING, tmp_path).splitlines()
    assert (first.partition("ERROR")[2], second.partition("ERROR")[2]) == (
        "   aiokafka.cluster: Topic orders not found in cluster metadata", "   aiokafka: the same",
    )  # fmt: skip


LEVELS = """
import logging, sys
from ackwise.plugin.cli.run import print_log
print_log(sys.argv[1], "text")
sys.stderr.write(" ".join(logging.getLevelName(logging.getLogger(name).getEffectiveLevel()) for name in ("ackwise", "aiokafka.conn")))
"""


@pytest.mark.slow  # waits for a process
@each(("level", "heard"), [("debug", "INFO"), ("info", "WARNING"), ("warning", "WARNING"), ("error", "ERROR")])
def test_the_kafka_client_is_heard_from_warnings_on_and_never_of_its_payloads(tmp_path: Path, level: str, heard: str) -> None:
    assert python(LEVELS, tmp_path, level) == f"{level.upper()} {heard}"


@pytest.mark.slow  # starts a process that configures no logging
def test_without_any_configuration_warnings_are_printed_and_nothing_else(tmp_path: Path) -> None:
    said = python('from ackwise.middleware.log import Log; Log().info("quiet"); Log().warning("loud", topic="orders")', tmp_path)
    assert said == "loud: topic=orders\n"


@pytest.mark.slow  # starts a worker in a process
def test_ackwise_run_prints_json_lines(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    said = python("from ackwise.plugin.cli.main import main; main()", tmp_path, "run", "worker:app", "--log-format", "json")
    first, *_, last = said.splitlines()
    assert json.loads(first)["event"] == "starting"
    assert json.loads(first)["fields"] == {"group": "billing", "brokers": "127.0.0.1:1", "agents": "bill"}
    assert last.startswith("error ")
