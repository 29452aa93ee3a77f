"""Window: the rows that are sent side by side, and what the answers make of them. Pure.

Within a window the rows of a key are handed over in the order of their ids, and the sender writes nothing behind one that failed. So
after a failure the later rows of its key wait: they have not failed, nothing is charged to them, and they stay where they are. If the
broker acknowledged one of them all the same, it stays too, and is sent again after the one that failed, under its id.

A row of another key that was not tried, since its partition had failed, is put off like one that failed, so that it is in nobody's way;
but only a failure of its own parks a row.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ackwise.middleware.outbox import Failed, OutboxRow, retry_delay
from ackwise.middleware.outgoing import Acked, SendAnswer, SendFailed

__all__ = ["Key", "Ruling", "Window", "key_of", "rule"]

#: Bytes of values: an outbox may hand out fewer rows at a time if they are large.
_LARGE: Final = 2**20

Key = tuple[str, bytes]
"""Topic and key: what has an order."""


@dataclass(frozen=True, slots=True)
class Window:
    """Rows by id, and the fencing tokens of their shards as they were when the rows were read."""

    rows: Sequence[OutboxRow] = ()
    tokens: Mapping[int, int] = field(default_factory=dict)

    def is_large(self, batch: int) -> bool:
        """Whether it is worth reading on while it is sent: there is probably more."""
        return 2 * len(self.rows) >= batch or sum(len(row.message.value or b"") for row in self.rows) >= _LARGE

    def still(self, tokens: Mapping[int, int], stopped: Collection[Key]) -> Window:
        """The same without rows whose shard has gone, or has a new token, since, and without rows of the keys that are `stopped`."""
        kept = [row for row in self.rows if tokens.get(row.shard) == self.tokens[row.shard] and key_of(row) not in stopped]
        return self if len(kept) == len(self.rows) else Window(kept, self.tokens)


@dataclass(slots=True)
class Ruling:
    """What became of the rows of a window, each in one of the three lists."""

    sent: list[tuple[OutboxRow, Acked]] = field(default_factory=list)
    failed: list[tuple[OutboxRow, SendFailed, Failed]] = field(default_factory=list)
    behind: list[OutboxRow] = field(default_factory=list)
    """They wait for an earlier row of their key."""
    stopped: set[Key] = field(default_factory=set)
    """Keys of which nothing more is to be sent now."""

    @property
    def may_be_outage(self) -> bool:
        """Nothing was acknowledged, and nothing was refused: perhaps no broker is there."""
        return bool(self.failed) and not self.sent and all(answer.retriable for _, answer, _ in self.failed)


def key_of(row: OutboxRow) -> Key | None:
    """The key that `row` has an order with; `None` if it has none."""
    message = row.message
    return None if message.key is None else (message.topic, message.key)


def rule(
    rows: Sequence[OutboxRow], answers: Sequence[SendAnswer], *, max_attempts: int, parked_blocks: bool, rng: random.Random | None = None
) -> Ruling:
    """What the `answers` make of the `rows`. With `parked_blocks`, a row that is parked stops its key."""
    ruling, parked = Ruling(), set[Key]()
    for row, answer in zip(rows, answers, strict=True):
        key = key_of(row)
        if key in ruling.stopped or (key in parked and isinstance(answer, SendFailed)):
            ruling.behind.append(row)
        elif isinstance(answer, Acked):
            ruling.sent.append((row, answer))
        else:
            failure = _failure(row, answer, max_attempts, rng)
            ruling.failed.append((row, answer, failure))
            if key is not None:
                (parked if failure.again_in is None and not parked_blocks else ruling.stopped).add(key)
    return ruling


def _failure(row: OutboxRow, answer: SendFailed, max_attempts: int, rng: random.Random | None) -> Failed:
    attempts = row.attempts + 1
    if not answer.retriable:
        return Failed(row.id, row.shard, answer.cause, None)
    if attempts >= max_attempts and _was_tried(answer):
        return Failed(row.id, row.shard, f"{answer.cause}; it has failed {attempts} times", None)
    return Failed(row.id, row.shard, answer.cause, retry_delay(attempts, rng=rng))


def _was_tried(answer: SendFailed) -> bool:
    """What failed by itself names the error of the client."""
    return bool(answer.error)
