from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

APP = """
from ackwise import App

app = App("billing", brokers="127.0.0.1:1")

@app.agent("orders")
async def bill(value: bytes) -> None: ...

number = 7
"""


def ackwise(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ackwise.plugin.cli.main import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "worker.py").write_text(APP)
    (tmp_path / "wrong.py").write_text('from ackwise import App\napp = App("bill ing")\n')
    (tmp_path / "broken.py").write_text("\nimport there_is_no_such_module\n")
    (tmp_path / "unfinished.py").write_text("def bill(:\n")
    (tmp_path / "portless.py").write_text('from ackwise import App\napp = App("billing", brokers="kafka-1")\n')
    (tmp_path / "binary.py").write_bytes(b"\x80\x00\n")
    (tmp_path / "nothing.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("absent:app", "there is no module 'absent'"),
        ("absent.worker:app", "there is no module 'absent'"),
        ("worker", "does not name an app; write MODULE:APP"),
        ("worker:ap", "module 'worker' has no 'ap'; did you mean worker:app"),
        ("worker:number", "has a int as 'number', not an App; did you mean worker:app"),
        ("nothing:app", "module 'nothing' has no 'app'; it has no App at all"),
        ("wrong:app", "group is 'bill ing'"),
        (
            "broken:app",
            "can't be imported, broken.py:2 raises ModuleNotFoundError: No module named 'there_is_no_such_module'; ackwise",
        ),
        ("unfinished:app", "can't be imported, unfinished.py:1 raises SyntaxError: "),
        ("binary:app", "module 'binary' can't be imported"),
        ("portless:app", "broker 'kafka-1' has no port; write it as 'host:port', such as 'kafka-1:9092'"),
        ("..:app", "'..' can't be the name of a module"),
        ("not-a-name:app", "'not-a-name' can't be the name of a module"),
        ("./worker.py:app", "is a file; name the module instead, from the folder that it is in: worker:app"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(folder: Path, target: str, sentence: str) -> None:
    done = ackwise("run", target, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_where_an_error_came_from_is_shown_on_demand(folder: Path) -> None:
    done = ackwise("--traceback", "run", "broken:app", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error module 'broken' can't be imported")


def test_brackets_in_an_error_are_not_taken_for_markup(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text('raise RuntimeError("pip install [spark]")\n')
    assert "pip install [spark]" in ackwise("run", "odd:app", cwd=tmp_path).stderr


def test_no_broker_at_the_start_is_one_sentence(folder: Path) -> None:
    done = ackwise("run", "worker:app", "--log-level", "error", cwd=folder)
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error ")
    assert "Traceback" not in done.stderr


def test_a_command_that_cannot_be_loaded_says_so_when_called(tmp_path: Path) -> None:
    folder = tmp_path / "absent-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: absent\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[ackwise.commands]\nabsent = there_is_no_such_module:command\n")
    assert ackwise("--help", cwd=tmp_path).returncode == 0
    done = ackwise("absent", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ackwise absent can't be loaded" in done.stderr


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert ackwise("--version", cwd=tmp_path).stdout.startswith("ackwise ")


def test_help_imports_neither_spark_nor_a_kafka_client(tmp_path: Path) -> None:
    script = """
        import sys
        from ackwise.plugin.cli.main import main
        sys.argv = ["ackwise", "--help"]
        try:
            main()
        except SystemExit:
            pass
        heavy = {"aiokafka", "confluent_kafka", "pyarrow", "pydantic", "pyspark"} & set(sys.modules)
        sys.exit(f"imported {heavy}" if heavy else 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "run" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run worker:app --log-level error", "topics check worker:app", "doctor worker:app"])
def test_a_broker_that_hangs_is_given_up_within_a_quarter_of_a_minute(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never answers
        (tmp_path / "worker.py").write_text(APP.replace("127.0.0.1:1", f"127.0.0.1:{server.getsockname()[1]}"))
        started = time.monotonic()
        done = ackwise(*command.split(), cwd=tmp_path)
        took = time.monotonic() - started
    assert done.returncode == (1 if command.startswith("doctor") else 2)
    assert "take connections and do not answer questions about topics" in done.stdout + done.stderr
    assert took < 15
    assert "Traceback" not in done.stderr
