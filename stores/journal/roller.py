"""The process that rolls a worker's logs, at low priority: the worker itself imports no pyarrow.

It reads one request in each line, the logs to roll as a JSON list, or null for all, and writes one line when they are done. It ends with
its input, so a worker that was killed leaves none behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ackwise.middleware.log import Log
from ackwise.stores.journal.recovery import Recovery, UnreadableLog, recover, roll

__all__ = ["Roller", "missing_package", "serve"]

log = Log("ackwise.events")

_NICE: Final = 10
_PACKAGES: Final = ("numpy", "pyarrow")


def missing_package() -> str | None:
    """Return the name of a package that rolling needs and this Python lacks."""
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


class Roller:
    """Starts the process when there is something to roll, and again after it died. For one thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._has_given_up = False

    def roll(self, paths: Sequence[Path] | None) -> Recovery:
        """Roll these logs, or all. Logs stay `live` if the process died or gave no answer; the next one takes them. Raises `OSError`."""
        stay = Recovery(live=list(paths or ()))
        if self._has_given_up:
            return stay
        process = self._process or self._started()
        if self._has_given_up:  # meanwhile, and saw no process
            process.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(None if paths is None else [str(path) for path in paths]).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        recovery = _read(answer)
        if recovery is None:
            self._process = None
            exit_code = _end(process)
            if not self._has_given_up:
                log.warning("the process that rolls event logs died", exit_code=exit_code, to_do="the next roll starts another one")
        return stay if recovery is None else recovery

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def give_up(self) -> None:
        """Kill the process and roll nothing more: logs stay whole, and the next worker takes them. For any thread."""
        self._has_given_up = True
        if (process := self._process) is not None:
            process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        # A fresh interpreter, since a fork of a process with threads may hang; a group of its own, since Ctrl-C is for the worker. No
        # session of its own: with autogroups Linux shares the cores between sessions first, and a low priority counts within one alone.
        command = [sys.executable, "-c", "from ackwise.stores.journal.roller import serve; serve()", str(self._root)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)  # ours
        return self._process


def _end(process: subprocess.Popen[bytes]) -> int:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    return process.wait()


def _read(answer: bytes) -> Recovery | None:
    """Return what was rolled, or None if that is no answer: the process has died, or something else wrote to its output."""
    try:
        said = json.loads(answer)
    except ValueError:
        return None
    unreadable = [UnreadableLog(Path(path), *rest) for path, *rest in said["unreadable"]]
    return Recovery([Path(path) for path in said["rolled"]], [Path(path) for path in said["live"]], unreadable)


def _answer(root: Path, paths: Sequence[str] | None) -> bytes:
    recovery = Recovery() if paths is not None else recover(root)
    for path in paths or ():
        roll(Path(path), root, recovery)
    unreadable = [[str(each.path), each.reason, each.writer_id, each.from_seq] for each in recovery.unreadable]
    said = {"rolled": [*map(str, recovery.rolled)], "live": [*map(str, recovery.live)], "unreadable": unreadable}
    return json.dumps(said).encode() + b"\n"


def serve() -> None:
    """Roll logs below the folder that the command line names, until the input ends."""
    root = Path(sys.argv[1])
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what anything prints is no answer
    with contextlib.suppress(BrokenPipeError):  # the worker was killed, and its logs are whole
        for line in sys.stdin.buffer:
            answers.write(_answer(root, json.loads(line)))
