"""Ctrl-C while events are judged, and a disk that becomes full."""

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from tests.spark.commands.test_reconcile_mistakes import events_below, refusal

import ackwise.spark.job
from ackwise.spark.commands.interrupting import interruptible


def interrupted() -> NoReturn:
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("the signal came too late")


def turned_by_duckdb() -> NoReturn:
    with suppress(KeyboardInterrupt):
        interrupted()
    raise RuntimeError("Query interrupted")


def turned_by_py4j() -> NoReturn:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise RuntimeError("An error occurred while calling o55.sc") from error


@pytest.mark.parametrize("work", [interrupted, turned_by_duckdb, turned_by_py4j])
def test_an_interrupt_is_one_sentence_and_exit_code_130_wherever_it_arrives(work: object, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(typer.Exit) as ended, interruptible():
        work()  # type: ignore[operator]
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted; nothing was concluded\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="damaged"), interruptible():
        raise RuntimeError("damaged")


def test_a_full_disk_is_named_and_what_was_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events_below(tmp_path / "root")
    out = tmp_path / "new" / "out"

    def full(*_: object, out: Path, **__: object) -> NoReturn:
        (out / "verdicts").mkdir()
        (out / "verdicts" / "part.parquet").touch()
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(ackwise.spark.job, "reconcile", full)
    assert refusal(tmp_path / "root", "--engine", "local", "--out", out) == (
        f"{out}: no space left on the device; make room there, or give another folder to --out; nothing was concluded"
    )
    assert not out.parent.exists()


def test_a_thread_is_never_interrupted_and_needs_no_handler_of_the_signal() -> None:
    def judge() -> int:
        with interruptible():
            return 7

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(judge).result() == 7
