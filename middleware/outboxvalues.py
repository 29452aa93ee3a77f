"""Values of an outbox: its rows and their states, what becomes of them, and when they are tried again. Pure."""

from __future__ import annotations

import base64
import enum
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.message import Headers
from ackwise.middleware.outgoing import Outgoing

__all__ = [
    "CheckAnswer",
    "FIRST_CHECK",
    "Failed",
    "MAX_CHECKS",
    "NEXT_CHECK",
    "OutboxRow",
    "OutboxStatus",
    "Parked",
    "Prepared",
    "RowState",
    "SHARDS",
    "Sent",
    "TransactionOutcome",
    "UnreadableRow",
    "key_hash",
    "next_check",
    "packed_headers",
    "retry_delay",
    "shard_of",
    "unpacked_headers",
]

#: Shards of an outbox. A relay owns whole shards, so all rows of a key have one sender, and their order is kept.
SHARDS: Final = 64

#: Seconds after `prepare` until the first check-back, and from one to the next. RocketMQ: `transactionTimeOut`, `transactionCheckInterval`.
FIRST_CHECK, NEXT_CHECK = 6.0, 30.0

#: Answered checks after which a row is parked. RocketMQ: `transactionCheckMax`.
MAX_CHECKS: Final = 15


class RowState(enum.IntEnum):
    """The state of a row. LOCAL_ROLLBACK and GLOBAL_COMMIT are terminal."""

    UNKNOWN = 0
    """Never of a row of ours: the answer of a check-back that can't decide now."""
    PREPARED = 1
    """Durable, and nobody knows yet how the local transaction ends."""
    LOCAL_COMMIT = 2
    """The local transaction has committed: to be sent."""
    LOCAL_ROLLBACK = 3
    """The local transaction has rolled back: never sent."""
    GLOBAL_COMMIT = 4
    """The broker has acknowledged it."""
    MESSAGE_ERROR = 5
    """Parked: refused for good, or its attempts or checks are used up. `requeue` makes it LOCAL_COMMIT."""


def shard_of(message: Outgoing) -> int:
    """The shard of a row: equal topic and key, equal shard. Without a key the message id spreads the rows, which have no order."""
    name = message.key if message.key is not None else message.message_id.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(message.topic.encode() + b"\0" + name, digest_size=2).digest()
    return int.from_bytes(digest, "big") % SHARDS


def key_hash(topic: str, key: bytes) -> int:
    """What a row keeps to find others of its key: 63 bits of a hash of topic and key, above 0."""
    digest = hashlib.blake2b(topic.encode() + b"\0" + key, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


def packed_headers(headers: Headers) -> str | None:
    """Headers as they stand in a row: JSON, a list of pairs of a name and a value in base 64; `None` without headers."""
    if not headers:
        return None
    return json.dumps([[name, None if value is None else base64.b64encode(value).decode("ascii")] for name, value in headers])


def unpacked_headers(packed: str | None) -> Headers:
    """The headers of a row. Raises `ValueError` for a text that `packed_headers` never wrote."""
    if packed is None:
        return ()
    return tuple((name, None if value is None else base64.b64decode(value)) for name, value in json.loads(packed))


class OutboxRow(NamedTuple):
    """A row to be sent."""

    id: int
    shard: int
    message: Outgoing
    attempts: int
    """How often sending it has failed."""
    created_ms: int
    """Epoch milliseconds of the database's clock at the insert."""


class Sent(NamedTuple):
    """The broker has acknowledged the row `id`."""

    id: int
    shard: int


class Failed(NamedTuple):
    """Sending the row `id` failed: it is due again in `again_in` seconds, or parked if that is `None`."""

    id: int
    shard: int
    cause: str
    """One sentence, without anything of the payload."""
    again_in: float | None


class UnreadableRow(AckwiseError):
    """The row `id` can't be read: nobody of ours wrote it so. It is parked, or the rows behind it would wait for ever."""

    def __init__(self, id: int, shard: int, topic: str, why: str) -> None:
        super().__init__(f"row {id} can't be read ({why}); see who changed the table")
        self.id, self.shard, self.topic = id, shard, topic


class Parked(NamedTuple):
    """A row that waits for somebody to decide."""

    id: int
    topic: str
    message_id: str
    key: bytes | None
    attempts: int
    checks: int
    cause: str
    created_ms: int
    headers: Headers = ()
    value: bytes | None = None
    """Filled only when one row is shown."""


class Prepared(NamedTuple):
    """A row whose local transaction has not said how it ended, and which is due for a check-back."""

    id: int
    message: Outgoing
    tx_id: str
    checks: int
    """Answered checks so far."""
    created_ms: int
    producer_group: str
    barrier_in: str
    """The `database_id` of the database where its local transaction inserts a barrier; empty if only a callback can answer."""


class TransactionOutcome(enum.Enum):
    """How a local transaction ended. RocketMQ: `LocalTransactionState`."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """It may still be running, or nobody can be asked now."""


class CheckAnswer(NamedTuple):
    """The answer to a check-back of the row `id`. An answer UNKNOWN counts as a check; a check that raised has no answer and does not."""

    id: int
    outcome: TransactionOutcome
    again_in: float | None = NEXT_CHECK
    """Seconds until the next check after UNKNOWN; `None` parks the row."""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How an outbox stands. Ages are seconds by the database's clock, `None` where there is no such row."""

    waiting: int = 0
    """Rows in LOCAL_COMMIT."""
    oldest: float | None = None
    """Age of the oldest of them."""
    prepared: int = 0
    oldest_prepared: float | None = None
    parked: int = 0
    oldest_parked: float | None = None
    owners: Mapping[str, int] = field(default_factory=dict)
    """Relays whose lease is alive, with the number of their shards."""
    relay_kind: str | None = None
    """What sends the rows: `"table"`, `"cdc"`, or `None` before the first relay."""


def next_check(checks: int, *, limit: int = MAX_CHECKS, every: float = NEXT_CHECK) -> float | None:
    """Seconds until a row is checked again that has had `checks` answered checks, this one included; `None`: it is parked."""
    return every if checks < limit else None


def retry_delay(attempts: int, *, rng: random.Random | None = None) -> float:
    """Seconds until a send is repeated that has failed `attempts` times: 1 s × 1.6^(n-1), at most 120 s, ± 20 % at random."""
    delay = min(120.0, 1.6 ** max(0, attempts - 1))
    return float(delay * (rng or random).uniform(0.8, 1.2))
