"""`Unrecorded`: a run that succeeded, and that the event log could not be told of when its partition left."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Unrecorded"]


class Unrecorded(NamedTuple):
    """What a store is told of it beside the outcome, as one text, so that whoever claims the key next records it."""

    writer_id: int
    """Of the events that are missing; 0 if they have none."""
    exec_id: int
    partition: int
    offset: int
    topic: str
    """Where the record that ran was first written."""

    def __str__(self) -> str:
        return f"{self.writer_id:x} {self.exec_id:x} {self.partition} {self.offset} {self.topic}"

    @classmethod
    def read(cls, text: str) -> Unrecorded | None:
        """The run that a store tells of; `None` if it tells of none."""
        try:
            writer_id, exec_id, partition, offset, topic = text.split(" ", 4)
            return cls(int(writer_id, 16), int(exec_id, 16), int(partition), int(offset), topic)
        except ValueError:
            return None

    def attributes(self, place: str) -> dict[str, Any]:
        """What the event says that the record at `place` was not run for this: where the one that ran was read, if it is another."""
        ran = f"{self.topic}/{self.partition}/{self.offset}"
        return ({} if ran == place else {"leader": ran}) | {"writer": self.writer_id}
