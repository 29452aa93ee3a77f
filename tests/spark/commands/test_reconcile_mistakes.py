"""Whatever a user gives `ackwise reconcile` by mistake ends in one sentence and exit code 2, and leaves no folder behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.spark.histories import History, write_parquet
from tests.spark.reconciling import reconciled

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.spark.config import ReconcileConfig

NAME = "events-00000000000000ab-000000000000-000000000004.parquet"


def refusal(*arguments: str | Path) -> str:
    """What is said to these arguments, which must be all that happens."""
    result = reconciled(*arguments)
    assert isinstance(result.exception, AckwiseError), result.exception
    assert result.stdout == ""
    return one_line(str(result.exception))


def run(*arguments: str | Path, prefix: tuple[str, ...] = (), environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own, with its own permissions and environment."""
    command = [*prefix, sys.executable, "-m", "ackwise.plugin.cli", "reconcile", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(environ or {})}, timeout=240)


def sentence(answer: subprocess.CompletedProcess[str]) -> str:
    """What a process says is wrong, after the lines that tell of its progress."""
    assert (answer.returncode, answer.stdout) == (2, ""), answer.stderr
    *before, last = answer.stderr.splitlines()
    assert all(" s  " in line for line in before), answer.stderr
    assert last.startswith("error ")
    return last.removeprefix("error ")


def one_line(text: str) -> str:
    assert "\n" not in text
    return text


def events_below(root: Path, name: str = NAME) -> Path:
    return write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / name, History("g").say("w1", "0:CS W=1").events)


@pytest.fixture
def without_privileges() -> tuple[str, ...]:
    """What a command begins with so that permissions hold for it, even where the tests run as root."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv to run the command with less")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")


def test_a_root_without_events_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "photo.jpg").touch()
    (tmp_path / "texts" / "events").mkdir(parents=True)
    (tmp_path / "texts" / "events" / "events.csv").write_text("a,b\n")
    events_below(tmp_path / "others", "part-0.parquet")
    sentences = {
        "photos/photo.jpg": " is a file; give the folder that Events was given",
        "nowhere": " is not a folder; give the folder that Events was given",
        "empty": "; give the folder that Events was given",
        "photos": " holds no events, neither a folder `events` nor `wal`",
        "texts": "there are no events below ",
        "others": "such as part-0.parquet, are not named as events are",
    }
    before = {*tmp_path.rglob("*")}
    for name, sentence in sentences.items():
        assert sentence in refusal(tmp_path / name), name
    assert {*tmp_path.rglob("*")} == before


def test_a_table_of_what_was_produced_that_is_not_there_is_named(tmp_path: Path) -> None:
    events_below(tmp_path / "root")
    nowhere, empty = tmp_path / "outbox.parquet", tmp_path / "empty"
    empty.mkdir()
    assert (
        refusal(tmp_path / "root", "--produced", nowhere)
        == f"{nowhere} is not there; give --produced a file or a folder of what was produced"
    )
    assert refusal(tmp_path / "root", "--produced", empty) == (
        f"{empty} has no file that ends in .parquet or .json, .jsonl, .ndjson; give --produced one"
    )
    (empty / "a.parquet").touch()
    (empty / "b.json").touch()
    assert refusal(tmp_path / "root", "--produced", empty) == f"{empty} has both Parquet and JSON files; give --produced one kind"


@pytest.mark.usefixtures("engine")
def test_a_table_of_something_else_is_not_taken_for_what_was_produced(tmp_path: Path) -> None:
    events_below(tmp_path / "root")
    table = tmp_path / "other.json"
    table.write_text('{"topic": "orders", "partition": 0}\n')
    assert refusal(tmp_path / "root", "--produced", table) == (
        f"{table} has no column 'offset'; the columns of a produced record are topic, topic_id, partition, offset, timestamp, aborted, key"
    )


def test_where_nothing_can_be_read_the_first_reason_is_given(tmp_path: Path) -> None:
    path = events_below(tmp_path)
    path.write_bytes(b"PAR1 and no end")
    assert f"can be read: {path} is torn" in refusal(tmp_path)


def test_folders_that_may_not_be_read_or_written_are_named_and_nothing_is_concluded(
    tmp_path: Path, without_privileges: tuple[str, ...]
) -> None:
    root = tmp_path / "root"
    events_below(root)
    (root / "wal").mkdir()
    inside = f"{root}/%s: Permission denied; nothing was concluded"
    for place, mode, expected in (
        (".", 0, f"{root} can't be read (Permission denied); let this user read it"),
        ("events", 0, inside % "events"),
        ("events/dt=2026-01-01/hr=00", 0, inside % "events/dt=2026-01-01/hr=00"),
        ("wal", 0, inside % "wal"),
        (".", 0o555, "can't be written (Permission denied); give another folder to --out"),
    ):
        (root / place).chmod(mode)
        answer = run(root, prefix=without_privileges)
        (root / place).chmod(0o755)
        assert expected in sentence(answer), place
        assert not (root / "runs").exists()


def test_a_file_as_the_folder_to_write_to(tmp_path: Path) -> None:
    events_below(tmp_path / "root")
    (tmp_path / "out").touch()
    assert "out can't be written (File exists); give another folder to --out" in refusal(tmp_path / "root", "--out", tmp_path / "out")


def test_a_value_that_an_option_can_not_have_is_refused_with_advice(tmp_path: Path) -> None:
    events_below(tmp_path)
    for option, value, advice in (
        ("--grace", "soon", "write it as 30, '30s', '500ms' or '2h'"),
        ("--writer-timeout", "-5", "write it as 30, '30s', '500ms' or '2h'"),
        ("--as-of", "yesterday", "write it as 2026-01-31T12:00:00Z"),
        ("--since", "yesterday", "write it as 2026-01-31T12:00:00Z or 1d"),
        ("--driver-memory", "lots", "write it as 512m or 2g"),
    ):
        said = refusal(tmp_path, option, value)
        assert said.startswith(f"{option} is '{value}', which is no"), option
        assert said.endswith(advice), option
    assert not (tmp_path / "runs").exists()


def test_a_negative_or_endless_setting_is_refused() -> None:
    wrong: list[dict[str, Any]] = [{"grace": -1.0}, {"as_of": float("nan")}, {"levels": (1.0, -2.0)}, {"lease": float("inf")}]
    for values in wrong:
        with pytest.raises(ConfigurationError, match=f"{next(iter(values))} of the reconciliation is"):
            ReconcileConfig(**values)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_master_that_spark_does_not_know_is_one_sentence_without_its_stack(tmp_path: Path) -> None:
    events_below(tmp_path)
    said = sentence(run(tmp_path, "--engine", "spark", "--master", "nonsense"))
    assert said.startswith("Spark does not start: Master must either be yarn or start with spark")
    assert not (tmp_path / "runs").exists()


def test_of_what_java_says_the_class_of_the_exception_is_left_out() -> None:
    from ackwise.spark.session.spark import explain

    said = "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: [TORN] It is torn.\n\tat org.apache"
    assert explain(RuntimeError(said)) == "[TORN] It is torn"


ABANDON_TWO_LOGS = """
import asyncio, os, sys
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal import Journal

async def main():
    for client in ("one", "two"):
        journal = Journal(sys.argv[1], cluster="c", group_id="g", client=client)
        await journal.open()
        journal.record(Event(EventCode.ASSIGNED, sys.argv[2], 0, 0, role="source", from_commit=False))
        journal.record(Event(EventCode.RECEIVED_RANGE, sys.argv[2], 0, 0, range_end=1))
        journal.record(Event(EventCode.COMMITTED, sys.argv[2], 0, range_end=1))
        await journal.flush()
    os._exit(0)

asyncio.run(main())
"""


def test_of_logs_in_a_folder_that_may_not_be_written_a_piped_report_is_whole_and_nothing_else_is_said(
    tmp_path: Path, without_privileges: tuple[str, ...]
) -> None:
    root, topic = tmp_path / "root", "a-topic-with-a-name-that-is-far-too-long-for-eighty-columns-beside-all-the-other-columns"
    subprocess.run([sys.executable, "-c", ABANDON_TWO_LOGS, str(root), topic], check=True)
    (root / "wal").chmod(0o555)
    root.chmod(0o555)
    answer = run(root, "--out", tmp_path / "out", prefix=without_privileges, environ={"COLUMNS": "80"})
    root.chmod(0o755)
    assert answer.returncode == 1, answer.stderr
    assert all(" s  " in line for line in answer.stderr.splitlines()), answer.stderr
    assert f"{topic}/0" in answer.stdout
    assert "…" not in answer.stdout
    assert answer.stdout.splitlines()[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert (tmp_path / "out" / "report.html").exists()
