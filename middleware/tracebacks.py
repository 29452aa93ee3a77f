"""Tracebacks: the line of user code where an exception was raised."""

from __future__ import annotations

import os
import sysconfig
import traceback as tracebacks
from types import FrameType
from typing import Final

from ackwise.middleware.usercode import looked

__all__ = ["where_raised"]

_INSTALLED: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_traceback_of = BaseException.__dict__["__traceback__"].__get__


def where_raised(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of user code; of the innermost frame at all where there is none.

    User code is what belongs to neither Ackwise nor an installed package, and the installed package that Ackwise called: an app
    may be installed itself. `None` for an exception without a traceback.
    """
    return looked(_where_raised, error, otherwise=None)


def _where_raised(error: BaseException) -> str | None:
    frames = list(tracebacks.walk_tb(_traceback_of(error)))
    foreign = [(frame, line) for frame, line in frames if _package(frame) != "ackwise"]
    called = _package(foreign[0][0]) if foreign else None
    users = [(frame, line) for frame, line in foreign if not _is_installed(frame) or _package(frame) == called]
    for frame, line in reversed(users or frames):
        return f"{frame.f_code.co_filename}:{line}"
    return None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(("<", *_INSTALLED))
