"""Log: fixed events with named fields; the only way to the logger. `docs/logging.md` lists every event.

Nothing of a message is logged, and no text from user code: of a user's exception only its class and its place. Untrusted text is cut to
one printable line. A line that would repeat while a state lasts is logged once, and then at intervals.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from ackwise.middleware.usercode import Returned, called, class_name, shown

#: Characters of a text in a cell of a table, and of a value.
_CELL: Final = 160
_VALUE: Final = 4000


def plain(text: str, limit: int = _CELL) -> str:
    """Return `text` in one line, cut, with what does not print spelled out: control characters, marks that turn the line around."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut(text, limit))


def bytes_text(given: bytes | None, limit: int = _VALUE) -> str | None:
    """Return bytes as a text where they are one, and as 0x and hex digits where they are not; cut."""
    if given is None:
        return None
    try:
        text = given.decode()
    except UnicodeDecodeError:
        text = f"0x{given[:limit].hex()}"
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    """Return `text`, or its first `limit` characters and the number of the others."""
    return text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit} more"


Field = str | int | float | None
"""What a field may hold; `None` leaves it out."""

#: What drivers and brokers may repeat of how they were called: user and password of a URL, a password of a connection string.
_CREDENTIALS: Final = re.compile(r"(?<=://)\S+(?=@)|(?<=password=)[^\s&]+", re.IGNORECASE)

#: A text that needs no quotes: no other field can be read into it.
_PLAIN: Final = re.compile(r"[^\s\"'=]+")


class Log:
    """A logger of the standard library. Records have `event` and `fields` (a dict) beside the message that prints both."""

    def __init__(self, name: str = "ackwise") -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, *, raised: BaseException | None = None, **fields: Field) -> None:
        """For debugging: with the traceback of `raised`, whose texts may be the user's."""
        self._write(logging.DEBUG, event, fields, raised)

    def info(self, event: str, **fields: Field) -> None:
        """The worker's own life: it starts, is assigned partitions, waits, drains and stops."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        """The operator should know, and Ackwise goes on by itself."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Field) -> None:
        """The operator has to act."""
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Field], raised: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        told = {name: _masked(value) if isinstance(value, str) else value for name, value in fields.items() if value is not None}
        # The template stays the same for every record of an event, so that tools which group by it group events.
        template, texts = (f"{event}: %s", [" ".join(f"{name}={_printed(value)}" for name, value in told.items())]) if told else (event, [])
        extra = {"event": event, "fields": told}
        if raised is not None:
            written = called(partial(self._logger.log, exc_info=raised, extra=extra, stacklevel=4), level, template, *texts)
            if isinstance(written, Returned):
                return
        self._logger.log(level, template, *texts, extra=extra, stacklevel=3)  # also of an exception that can't be printed


def said(error: BaseException) -> str:
    """Class and text of an error of our own machinery, a broker's or a disk's; never of one that user code raised."""
    name, text = class_name(error), shown(error)
    if not text or text.startswith(name):
        return text or name
    return f"{name}: {text}"


def _masked(text: str) -> str:
    return _CREDENTIALS.sub("***", text)


def _printed(value: str | int | float) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.isprintable() else json.dumps(value, ensure_ascii=not value.isprintable())
    return f"{value:.12g}" if isinstance(value, float) else str(value)


class LogThrottle:
    """Whether something is due to be said. `every` seconds it is, for each key by itself."""

    def __init__(self, every: float = 60.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._next: dict[Hashable, float] = {}

    def is_due(self, key: Hashable = None) -> bool:
        """Return whether it was not said for so long; from now on it was."""
        now = self._clock()
        if now < self._next.get(key, now):
            return False
        self._next[key] = now + self._every
        return True

    def reset(self, key: Hashable = None) -> None:
        """It has ended; if it starts again, that is logged at once."""
        self._next.pop(key, None)
