"""Ctrl-C while events are judged: one sentence and exit code 130, wherever it arrives."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from ackwise.plugin.cli.console import to_stderr

__all__ = ["interruptible"]

#: As shells count it: 128 + SIGINT.
_INTERRUPTED: Final = 130


@contextmanager
def interruptible() -> Iterator[None]:
    """Exit with 130 on Ctrl-C, including when DuckDB or py4j turns the interrupt into an error of its own."""
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # no signal arrives there
        yield
        return
    before, root, silent = signal.signal(signal.SIGINT, note), logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)  # py4j logs the traceback of an interrupt there
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if not came and not _is_interrupt(error):
            raise
        to_stderr().print("interrupted; nothing was concluded", style="yellow")
        raise typer.Exit(_INTERRUPTED) from error
    finally:
        root.removeHandler(silent)
        signal.signal(signal.SIGINT, before)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt caused the error. Spark replaces our handler, so the signal itself may be unknown here."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
