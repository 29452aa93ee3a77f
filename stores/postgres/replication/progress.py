"""`Progress`: the position in the log that may be reported as done; and positions as text, such as `16/B374D848`. Pure."""

from __future__ import annotations

from collections import deque


def format_lsn(lsn: int) -> str:
    """The text that PostgreSQL writes for `lsn`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The number of a text such as `16/B374D848`. Raises `ValueError`."""
    high, separator, low = text.partition("/")
    if not separator or len(high) > 8 or len(low) > 8:
        raise ValueError(f"{text!r} is no log sequence number")
    return int(high, 16) << 32 | int(low, 16)


class Progress:
    """How far the log was read, and up to where nothing is outstanding.

    The server drops the log before the position that is reported as `done`, and begins there after a crash. So it is the end of
    a transaction all of whose changes were acknowledged, or, while none is outstanding, the end of what the server has looked through.
    """

    def __init__(self, start: int = 0) -> None:
        self.done = start  #: May be reported.
        self._outstanding: deque[int] = deque()  # ends of transactions that were read whole and not acknowledged, in their order
        self._is_inside = False

    @property
    def waits(self) -> bool:
        """Whether something was read that is not acknowledged."""
        return self._is_inside or bool(self._outstanding)

    def begin(self) -> None:
        """A transaction begins: from now on something is outstanding."""
        self._is_inside = True

    def commit(self, end: int) -> None:
        """It was read whole; `end` is where it ends."""
        self._is_inside = False
        self._outstanding.append(end)

    def acknowledge(self, end: int) -> None:
        """Everything up to the end of a transaction was acknowledged. What was never read can't be."""
        while self._outstanding and self._outstanding[0] <= end:
            self.done = max(self.done, self._outstanding.popleft())

    def passed(self, position: int) -> None:
        """The server has sent everything that there is before `position`: an idle source goes forward with it."""
        if not self.waits:
            self.done = max(self.done, position)
