"""`ackwise reconcile --follow` from the outside: lines, signals, exit codes, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.spark.follow.test_following import CLEAN, LOST
from tests.spark.histories import History
from tests.spark.reconciling import AS_OF, reconciled, root_of

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.commands.follow import Stop


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_of(tmp_path / "root", History("g").say("w1", CLEAN))


@contextmanager
def command(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "ackwise.plugin.cli", "reconcile", *map(str, arguments), "--follow", "--engine", "local"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
    """The exit code after a signal, and what it said on stderr."""
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize(
    ("words", "number", "code"), [(LOST, signal.SIGTERM, 1), pytest.param(CLEAN, signal.SIGINT, 0, marks=pytest.mark.nightly)]
)
def test_a_signal_ends_it_with_the_exit_code_of_the_last_audit(words: str, number: int, code: int, tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", words))
    with command(root, "--json") as process:
        assert process.stdout is not None
        line: dict[str, Any] = json.loads(process.stdout.readline())
        left, said = ended(process, number)
    assert (line["exit_code"], left) == (code, code)
    assert [each["verdict"] for each in line["new"]] == ["LOST"] * code
    assert "Traceback" not in said
    summary = json.loads((root / "runs" / "follow" / "summary.json").read_text())
    assert (summary["exit_code"], summary["run_id"]) == (code, line["run_id"])
    assert Path(line["report"]).is_file()


def test_it_ends_at_the_first_alarm_if_it_is_asked_to(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", LOST))
    result = reconciled(
        root, "--engine", "local", "--follow", "--fail-fast", "--metrics", tmp_path / "audit.prom", "--out", tmp_path / "out"
    )
    assert result.exit_code == 1, result.output
    assert "1 anomaly; 2 messages as of 2025-12-31 23:59:40 UTC, " in result.output
    assert "new: LOST 1 at orders/0 1 (bill in g)" in result.output
    assert 'ackwise_audit_verdicts{events="' in (tmp_path / "audit.prom").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_alarm_of_one_message_is_that_of_a_duration_before_each_update(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", LOST))
    result = reconciled(root, "--engine", "auto", "--follow", "--fail-fast", "--since", "36500d", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["config"]["since"] is not None
    assert found["engine"] == "local", "few events are judged in this process, though --since is given"


def test_what_can_not_work_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    wrong: list[tuple[list[str], str]] = [
        (["--every", "10s"], "--every is an option of --follow; add that, or leave --every out"),
        (["--fail-fast"], "--fail-fast is an option of --follow"),
        (["--webhook", "https://h/secret"], "--webhook is an option of --follow"),
        (["--metrics", "m.prom"], "--metrics is an option of --follow"),
        (["--follow", "--as-of", AS_OF], "--as-of is one time, and --follow judges as time goes on; leave one of them out"),
        (["--follow", "--format", "html"], "--follow prints lines: give --format tables or json"),
        (["--follow", "--every", "0s"], "--every is '0s'; it must be from 1s to 1d"),
        (["--follow", "--every", "soon"], "--every"),
        (["--follow", "--webhook", "/no/such/file"], "--webhook is neither a URL nor a readable file (No such file or directory)"),
        (["--follow", "--metrics", "/no/such/folder/m.prom"], "--metrics /no/such/folder/m.prom can't be written"),
        (["--topic", "localhost:9092/t"], "--topic is an option of --follow; add that, or leave --topic out"),
        (["--follow", "--topic", "billing"], "--topic is 'billing'; write it as HOST:PORT/TOPIC, such as localhost:9092/billing"),
        (["--follow", "--topic", "localhost:9092/.."], "'..' can't be the name of a topic"),
        (["--follow", "--topic", "nowhere/t"], "broker 'nowhere' has no port"),
        (["--follow", "--engine", "local", "--topic", "h:1/t"], "the local engine has no --topic; leave it out, or give --engine spark"),
        (["--follow", "--client-config", "f"], "--client-config is for --topic; add that, or leave --client-config out"),
    ]
    for options, sentence in wrong:
        result = reconciled(root, *options, *([] if "--engine" in options else ["--engine", "spark"]))
        assert isinstance(result.exception, ConfigurationError), options
        assert sentence in str(result.exception), options
        assert "secret" not in str(result.exception)
        assert [path.name for path in root.iterdir()] == ["events"], options
    assert "is not a folder" in str(reconciled(tmp_path / "none", "--follow").exception)


def test_the_first_signal_ends_the_waiting_and_the_second_is_as_without() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        assert stop.wait(0) is False
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60) is True
        assert signal.getsignal(signal.SIGINT) is before
        stop.arm()  # as after a start of Spark: the second stays what it is
        assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_are_taken_from_whoever_took_them_meanwhile() -> None:
    with Stop() as stop:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.arm()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60) is True
