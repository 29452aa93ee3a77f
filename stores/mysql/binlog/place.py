"""`Place` in the binary log, and `Progress`: the place that may be kept as done. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Place(NamedTuple):
    """A place between two events; the order is that of the log."""

    number: int
    """Of the file."""
    position: int
    file: str
    created: int
    """Epoch seconds at which the file began, as the file itself says: another file of this name has another one. 0 if not known yet."""

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


def number_of(file: str) -> int:
    """The number at the end of a file's name. Raises `ValueError`."""
    return int(file.rpartition(".")[2])


def place_of(text: str) -> tuple[int, int]:
    """What orders the place of a text such as `binlog.000012:4711`. Raises `ValueError`."""
    file, _, position = text.rpartition(":")
    return number_of(file), int(position)


class Progress:
    """How far the log was read, and up to where nothing is outstanding: `done` is the beginning of a transaction, always."""

    def __init__(self, start: Place) -> None:
        self.done = start  #: May be kept.
        self._outstanding: deque[Place] = deque()  # ends of transactions that were read and not acknowledged, in their order

    def commit(self, end: Place) -> None:
        """A transaction with changes of ours was read whole; `end` is where it ends."""
        self._outstanding.append(end)

    def acknowledge(self, end: tuple[int, int]) -> None:
        """Everything up to this end of a transaction was acknowledged. What was never read can't be."""
        while self._outstanding and self._outstanding[0][:2] <= end:
            self.done = self._outstanding.popleft()

    def passed(self, place: Place) -> None:
        """Between two transactions, the latter of which has nothing of ours: an idle source goes forward with it."""
        if not self._outstanding:
            self.done = place
