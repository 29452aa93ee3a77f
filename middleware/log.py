"""Log: fixed events with named fields, the only way to the logger.

Nothing of a message stands in it, and nothing that user code says: of a user's exception its class and its place.
`docs/logging.md` lists every event.
"""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from typing import Final

from ackwise.middleware.usercode import Returned, called, class_name, shown

__all__ = ["Field", "Log", "said"]

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
        """For whoever looks for a mistake: with the traceback of `raised`, whose texts may be the user's."""
        self._write(logging.DEBUG, event, fields, raised)

    def info(self, event: str, **fields: Field) -> None:
        """The worker's own life: it starts, is assigned partitions, waits, drains and stops."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        """Somebody should know of it, and Ackwise goes on by itself."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Field) -> None:
        """Somebody has to do something."""
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
