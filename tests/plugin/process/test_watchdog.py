"""A worker that ended by an error ends its process, whatever thread hangs; who has something to do after it does it in peace."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.tables import each

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.app import App
from ackwise.plugin.process.watchdog import AT_EXIT, AtExit, Watchdog, code_of

#: A worker that ends by an error, and a thread of a store that never does.
HANGING = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import ackwise.plugin.cli.run
from ackwise import App
from ackwise.errors import AckwiseError
from ackwise.plugin import app as module
module._THREADS_END = sys.modules["ackwise.plugin.cli.run"]._EXIT_WITHIN = 0.1
if "in the event loop" in sys.argv:
    module._TASKS_END = 0.1

async def serve(stop):
    if "in the event loop" in sys.argv:
        import asyncio
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    raise AckwiseError("the Kafka client has left the group") if "odd" not in sys.argv else ValueError("odd")

ThreadPoolExecutor(1).submit(time.sleep, 3600)
app = App("billing", brokers="localhost:1")
app.serve = serve
"""


def run(program: str, *arguments: str, folder: Path) -> tuple[int, str]:
    (folder / "worker.py").write_text(HANGING)
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow  # waits for a process
@each("where", ["in the event loop", "in the store"])
def test_a_worker_that_ended_by_an_error_ends_its_process_though_a_thread_hangs(tmp_path: Path, where: str) -> None:
    assert run("from worker import app; app.run()", where, folder=tmp_path) == (1, "")


@pytest.mark.slow  # waits for a process
@each(("kind", "code"), [("ours", 2), ("odd", 1)])
def test_the_command_keeps_its_exit_code_when_a_thread_hangs_after_an_error(tmp_path: Path, kind: str, code: int) -> None:
    program = "from ackwise.plugin.cli.root import new_app; new_app()(['run', 'worker:app'])"
    assert run(program, kind, folder=tmp_path) == (code, "")


@pytest.mark.slow  # waits for a process in which a thread hangs
def test_what_a_program_does_after_an_error_of_its_worker_is_done(tmp_path: Path) -> None:
    program = """
        import time
        from worker import AckwiseError, app
        try:
            app.run()
        except AckwiseError:
            time.sleep(0.5)
            print("told somebody")
    """
    assert run(program, folder=tmp_path) == (1, "told somebody\n")


def test_a_worker_that_is_run_anew_is_ended_for_no_error_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AT_EXIT, "_thread", threading.Thread())
    with pytest.raises(AckwiseError):
        App("billing", brokers="localhost:1").run()
    assert AT_EXIT._asked is not None
    again = App("billing", brokers="localhost:1")

    async def serve(stop: object) -> None: ...

    monkeypatch.setattr(again, "serve", serve)
    again.run()
    assert AT_EXIT._asked is None


def test_the_last_code_counts_and_one_thread_waits() -> None:
    codes: list[int] = []
    at_exit = AtExit(codes.append)
    at_exit._thread = threading.Thread()
    at_exit.arm(0.0, 1)
    at_exit.arm(0.0, 2)
    at_exit._is_over.set()
    at_exit._watch()
    at_exit.disarm()
    at_exit._watch()
    assert codes == [2]


@each(
    ("error", "code"),
    [(SystemExit(7), 7), (SystemExit(), 0), (SystemExit("no"), 1), (KeyboardInterrupt(), 130), (AckwiseError("left"), 1)],
    ids=repr,
)
def test_the_code_is_that_which_the_process_would_have_ended_with(error: BaseException, code: int) -> None:
    assert code_of(error) == code


class Armed(Watchdog):
    """Keeps the codes that it was given, and ends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int | Callable[[], int]] = []

    def arm(self, seconds: float, code: int | Callable[[], int]) -> None:
        self.codes.append(code)


@pytest.mark.parametrize(("failed_by", "code"), [(None, 0), (AckwiseError("left"), 1), (SystemExit(7), 7)], ids=repr)
async def test_a_worker_that_is_cut_off_after_a_signal_ends_its_process_with_its_error_if_it_has_one(
    monkeypatch: pytest.MonkeyPatch, failed_by: BaseException | None, code: int
) -> None:
    app, armed = App("billing", brokers="localhost:1"), Armed()

    async def serve(stop: asyncio.Event) -> None:
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        app._host = SimpleNamespace(failed_by=failed_by)  # type: ignore[assignment]

    monkeypatch.setattr(app, "serve", serve)
    await app._serve_until_signalled(armed)
    ended, watchdog = list[int](), Watchdog()
    watchdog._leave = ended.append
    (asked,) = armed.codes
    watchdog.arm(0.0, asked)
    assert watchdog._timer is not None
    watchdog._timer.join()
    assert ended == [code]
