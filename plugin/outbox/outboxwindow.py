"""State of a relay's session: the shards that it owns, the rows sent but not deleted, and the window of rows being sent. Pure.

Within a window the rows of a key are sent in the order of their ids, and nothing is sent after one that failed. The later rows of that key
wait, are not charged with a failure, and stay in the table. A later row that the broker acknowledged all the same stays too, and is sent
again under its id after the failed one.

A row of another key that was not tried because its partition had failed is postponed like a failed one, so that it blocks no other row;
only its own failure parks a row.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from ackwise.middleware.message.outgoing import Acked, SendAnswer, SendFailed
from ackwise.middleware.storage.outbox import SHARDS, Failed, OutboxRow, retry_delay


@dataclass(frozen=True, slots=True)
class Holding:
    """Shards with their fencing tokens. `until` is a time of the monotonic clock of this process.

    It is counted from before the database was asked, so the lease in the database ends later: nothing that is started before `until` is
    started by two relays. A process that was stopped finds the time over when it goes on.
    """

    tokens: Mapping[int, int] = field(default_factory=dict)
    until: float = float("-inf")
    renew_at: float = float("-inf")

    @classmethod
    def renewed(cls, tokens: Mapping[int, int], *, asked_at: float, lease: float, is_short: bool, hurry: float) -> Holding:
        """What the answer to a question of the time `asked_at` gives. Who `is_short` of its share asks again after `hurry` seconds."""
        return cls(dict(tokens), asked_at + lease, asked_at + (min(hurry, lease / 3) if is_short else lease / 3))

    def is_late(self, now: float, patience: float) -> bool:
        """Return whether shards should have been renewed that many seconds ago; never before the first are owned."""
        return self.renew_at != float("-inf") and now >= self.renew_at + patience

    def is_over(self, now: float) -> bool:
        """Return whether others may own the shards by now."""
        return now >= self.until


def fair_share(relays: int) -> int:
    """Return the number of shards for each of `relays` relays."""
    return ceil(SHARDS / max(1, relays))


#: Rows that are remembered. It takes an outage of the database to have more than a few windows of them.
_MOST: Final = 20_000


class AckMemory:
    """A bounded set of rows. One that was forgotten is sent again, under its message id."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._ids: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def remember(self, rows: Iterable[OutboxRow]) -> None:
        """The broker has acknowledged them."""
        self._ids.update((row.id, row.message.message_id) for row in rows)
        while len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def forget(self, rows: Iterable[OutboxRow]) -> None:
        """They are deleted, or belong to another relay."""
        for row in rows:
            self._ids.pop(row.id, None)

    def has(self, row: OutboxRow) -> bool:
        """Return whether it was acknowledged; a row of another database, or of a restored one, has another message id."""
        return self._ids.get(row.id) == row.message.message_id


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
        """Return whether it is worth reading on while it is sent: there is probably more."""
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
        """Return whether nothing was acknowledged and nothing refused: perhaps no broker is available."""
        return bool(self.failed) and not self.sent and all(answer.retriable for _, answer, _ in self.failed)


def key_of(row: OutboxRow) -> Key | None:
    """The key that `row` has an order with; `None` if it has none, as one that was delayed."""
    message = row.message
    return None if message.key is None or row.is_delayed else (message.topic, message.key)


def rule(
    rows: Sequence[OutboxRow], answers: Sequence[SendAnswer], *, max_attempts: int, parked_blocks: bool, rng: random.Random | None = None
) -> Ruling:
    """Rule on the `rows` by their `answers`. With `parked_blocks`, a row that is parked stops its key."""
    ruling, parked, loose = Ruling(), set[Key](), set[Key]()
    for row, answer in zip(rows, answers, strict=True):
        key = key_of(row)
        if key in ruling.stopped or (key in parked and isinstance(answer, SendFailed)):
            ruling.behind.append(row)
        elif isinstance(answer, SendFailed) and key in loose and not _was_tried(answer):  # for a delayed one, which it need not wait for
            ruling.behind.append(row)
            ruling.stopped.add(key)
        elif isinstance(answer, Acked):
            ruling.sent.append((row, answer))
        else:
            failure = failure_of(row, answer, max_attempts=max_attempts, rng=rng)
            ruling.failed.append((row, answer, failure))
            if key is not None:
                (parked if failure.again_in is None and not parked_blocks else ruling.stopped).add(key)
            elif row.message.key is not None:
                loose.add((row.message.topic, row.message.key))
    return ruling


def failure_of(row: OutboxRow, answer: SendFailed, *, max_attempts: int, rng: random.Random | None = None) -> Failed:
    """Return what to write down of a row that was not acknowledged: when it is tried again, or that it is parked."""
    attempts = row.attempts + 1
    if not answer.retriable:
        return Failed(row.id, row.shard, answer.cause, None)
    if attempts >= max_attempts and _was_tried(answer):
        return Failed(row.id, row.shard, f"{answer.cause}; it has failed {attempts} times", None)
    return Failed(row.id, row.shard, answer.cause, retry_delay(attempts, rng=rng))


def _was_tried(answer: SendFailed) -> bool:
    """Return whether the row failed by itself: then it has an error of the client."""
    return bool(answer.error)
