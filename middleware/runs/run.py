"""`Run`: messages of one partition on their way from fetch to commit, in order, that have gone the same way so far.

What goes well stays one object. A message that goes another way (it failed, is a duplicate, is held elsewhere, was ruled on)
falls out as a run of one. Only the spine splits a run, by `pick` and `apart`; whoever keeps leases marks tokens, and changes
nothing else. A message that was forgotten in a split would stall the watermark, which knows its offsets by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, Literal, Protocol, Self, TypeVar

from ackwise.middleware.events import Hashes
from ackwise.middleware.message.disposition import Disposition, Failure, Suspended
from ackwise.middleware.message.message import Delivery, Message, Origin, TopicPartition, delivery_of
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.policies.retry import SendBack
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.storage.claimstore import WHOEVER, Acquired, ClaimKey, Column, Outcome
from ackwise.middleware.usercode import Called

R = TypeVar("R", bound="Run")
T = TypeVar("T")


class Taker(Protocol):
    """What takes runs: the pipeline of an agent."""

    @property
    def agent(self) -> Agent:
        """Whose handler they go to."""
        ...

    async def __call__(self, runs: list[Run], assignment: Any, /) -> None:
        """Take them as far as they go."""


class Stage(enum.IntEnum):
    """How far a message has come. Settling resumes at the step that failed; only SETTLED moves the watermark."""

    WITHHELD = -1
    """Neither claimed nor run nor published now: its rate is spent, or the breaker keeps its dead letter. It comes up again as FETCHED."""
    FETCHED = 0
    ADMITTED = 1
    """May run: its claim is granted, or it needs none."""
    RULED = 2
    """Has a disposition."""
    PUBLISHED = 3
    """Its copy or dead letter is acknowledged, or it needs none."""
    RECORDED = 4
    """Its events are durable."""
    SETTLED = 5
    """Done, parked or dead, and the store knows."""


#: What a run has of each of its messages; `None` where it has none of it.
_COLUMNS: Final = (
    "records",
    "values",
    "ahead",
    "made",
    "timestamps",
    "exec_ids",
    "order_keys",
    "rate_keys",
)

_TIME_OF_DELIVERY, _TIME_OF_RECORD = attrgetter("timestamp_ms"), attrgetter("timestamp")


def time_of(record: Any) -> int:
    """The timestamp of a record where it was read, epoch milliseconds; -1 without one."""
    return int((_TIME_OF_DELIVERY if isinstance(record, Delivery) else _TIME_OF_RECORD)(record))


_KEY, _VALUE, _HEADERS = attrgetter("key"), attrgetter("value"), attrgetter("headers")

_NO_GRANT: Final = Acquired(0)


def _at(places: Sequence[int], column: Sequence[T] | None) -> list[T] | None:
    return None if column is None else [column[place] for place in places]


@dataclass(slots=True)
class Claims:
    """The claims of the messages of a run. A column is `None` where there are none."""

    ids: Sequence[bytes] | None = None  #: of their keys; `None`: not deduplicated
    hashes: Sequence[int] | None = None  #: what events say of a key, where that is not the start of its id
    of_coordinates: bool = False  #: their keys are the coordinates of the producer's own records
    day: int | None = None  #: of all their keys
    base_id: bytes | None = None  #: of a replay: of the key of its message, which it does not claim
    tokens: Sequence[int] | None = None  #: of those that are held or asked for
    lost: set[int] = field(default_factory=set)  #: tokens of those that are lost
    grant: Acquired = _NO_GRANT  #: what the store said as they were claimed for the last time
    unprotected: bool = False  #: it runs without them, since the store is down and the policy allows it

    def part(self, places: Sequence[int]) -> Claims:
        """Those of the messages at `places`."""
        tokens = _at(places, self.tokens)
        lost = self.lost.intersection(tokens or ()) if self.lost else set[int]()
        ids, hashes = _at(places, self.ids), _at(places, self.hashes)
        return Claims(ids, hashes, self.of_coordinates, self.day, self.base_id, tokens, lost, self.grant, self.unprotected)

    def forget(self) -> None:
        """None of them is held or asked for any more; the keys stay."""
        self.tokens, self.lost, self.unprotected = None, set(), False


class Run:
    """Messages with everything that was found out about them. The host makes it; the pipeline alone changes it.

    More than one message is always the producer's own records: a retry copy is a run of one, with its own attempt.
    What is named in the singular (`delivery`, `message`, `key`, `token`, …) is asked of a run of one.
    """

    def __init__(self, place: TopicPartition, records: Sequence[Any], pipeline: Taker | None = None) -> None:
        """`records` are as the client gave them, or one `Delivery`. `pipeline` takes them; without one this worker must not touch them."""
        self.place = place
        self.pipeline = pipeline
        self.records = records
        self.values: Sequence[Any] | None = None  #: decoded
        self.ahead: Sequence[Called] | None = None  #: what an asynchronous decoder came to
        self.made: Sequence[Message[Any]] | None = None  #: as the handler sees them, once they were read
        self.timestamps: Sequence[int] | None = None  #: epoch milliseconds
        self.claims = Claims()
        self.exec_ids: Sequence[int] | None = None
        self.size = 0  #: raw bytes, once its lane has counted them
        self.order_keys: Sequence[Hashable] | None = None  #: equal ones run one after the other; `None` among them: in no order
        self.rate_keys: Sequence[Hashable] | None = None  #: what they count for at their rate
        self.stage = Stage.FETCHED
        self.prepared = False  #: decoded, and the keys are known
        self.is_used = False  #: a handler has had its values and may have changed them: they are decoded again before it runs again
        self.passed = False  #: the watermark knows that it is settled
        self.counted: Literal["", "good", "bad"] = ""  #: how the breaker has counted its value
        self.is_expected = False  #: its rate counts on it to start
        self.in_place = 0  #: attempts that failed and were followed by no copy
        self.due_ms = 0  #: when the next of these is due, epoch milliseconds
        self.failure: Failure | None = None  #: of the last of these, if it was made here
        self.attempt: int = records[0].attempt if isinstance(records[0], Delivery) else 1
        self.batch_limit: int = 1 if pipeline is None else pipeline.agent.max_batch  #: messages in a batch with it, itself included
        self.register: dict[Run, Any] | None = None  #: of what is held by this worker; parts of what is in it are in it too
        self.out_of_order = False  #: others may have overtaken it, though its handler has an order
        self.alone = False  #: workers died of this message: it runs as the only claim of this worker
        self.at_most: int | None = None  #: messages in a batch with it, itself included, once it would have died with more of them
        self.began = False  #: a handler has seen it since it was admitted
        self.elsewhere_since: float | None = None  #: monotonic seconds; another has its claim, and IN_FLIGHT_ELSEWHERE was written
        self.leader: Run | None = None  #: the run of one with the same key in the same batch that this one follows
        self.call: HandlerCall | None = None
        self.started_at = 0.0
        self.disposition: Disposition | None = None
        self.error: str | None = None  #: class name of what the handler raised
        self.succeeded = False  #: the handler succeeded with these very records, in this process
        self.send_back: SendBack | None = None
        self.copy: Copy | None = None
        self.publishes: list[Outgoing] = []  #: what its handler sends elsewhere, if it is done
        self.recorded = False  #: its outcome is in the sink's buffer
        self.not_before = 0.0  #: monotonic seconds before which it does not come up again
        self.tries = 0
        self.why = ""  #: why it is held

    @classmethod
    def of(cls, delivery: Delivery, pipeline: Taker | None = None) -> Run:
        """A run of one."""
        return cls(TopicPartition(delivery.topic, delivery.partition), [delivery], pipeline)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<Run {self.place.topic}/{self.place.partition}/{self.first}..{self.last} of {len(self)} {self.stage.name} {self.why}>"

    # What it is about.

    @property
    def first(self) -> int:
        """The offset of its first message, where it was read."""
        return int(self.records[0].offset)

    @property
    def last(self) -> int:
        """The offset of its last message."""
        return int(self.records[-1].offset)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Its offsets, as `(first, behind the last)` of each range without a hole."""
        return ranges_of(self.records)

    @property
    def offsets(self) -> Sequence[int]:
        """Those of its messages, where they were read."""
        first, end = self.records[0].offset, self.records[-1].offset + 1
        return range(first, end) if end - first == len(self.records) else [record.offset for record in self.records]

    def times(self) -> Sequence[int]:
        """The timestamps of its records, epoch milliseconds."""
        if self.timestamps is None:
            self.timestamps = [*map(_TIME_OF_DELIVERY if isinstance(self.records[0], Delivery) else _TIME_OF_RECORD, self.records)]
        return self.timestamps

    @property
    def time_of_last(self) -> int:
        """The timestamp of its last record where it was read, epoch milliseconds."""
        return time_of(self.records[-1])

    @property
    def origin(self) -> Origin:
        """The origin of its first message."""
        return self.origin_at(0)

    def origin_at(self, place: int) -> Origin:
        """The origin of the message at `place`."""
        record = self.records[place]
        if isinstance(record, Delivery):
            return record.origin
        return Origin(self.place.topic, self.place.partition, record.offset, record.timestamp)

    @property
    def delivery(self) -> Delivery:
        """The message as it was fetched."""
        (record,) = self.records
        delivery = delivery_of(self.place, record)
        if delivery is not record:
            self.records = [delivery]
        return delivery

    def deliveries(self) -> list[Delivery]:
        """Its messages as they were fetched."""
        return [delivery_of(self.place, record) for record in self.records]

    def messages(self) -> Sequence[Message[Any]]:
        """Its messages as a handler sees them."""
        if self.made is None:
            self.made = making_messages([self])()
        return self.made

    @property
    def message(self) -> Message[Any]:
        """The message as a handler sees it."""
        (message,) = self.messages()
        return message

    @property
    def order_key(self) -> Hashable:
        """What runs one after the other with it; `None`: it has no order."""
        return self.order_keys[0] if self.order_keys else None

    @property
    def reconsume_times(self) -> int:
        """Return how often it was sent back, or suspended in place; 0 on its first attempt."""
        return self.attempt - 1 + self.in_place

    # Claims.

    @property
    def key(self) -> ClaimKey | None:
        """What its claim is about; `None`: it is not deduplicated."""
        return None if self.claims.ids is None else ClaimKey(self.claims.ids[0], self.claims.day, self.attempt)

    @property
    def token(self) -> int:
        """Of its claim; 0 for none."""
        return self.claims.tokens[0] if self.claims.tokens else 0

    @property
    def claim_lost(self) -> bool:
        """Return whether the claim of one of its messages is lost."""
        return bool(self.claims.lost)

    def lost_places(self) -> list[int]:
        """The places of its messages whose claim is lost."""
        lost, tokens = self.claims.lost, self.claims.tokens or ()
        return [place for place, token in enumerate(tokens) if token in lost] if lost else []

    @property
    def exec_id(self) -> int | None:
        """Of its execution."""
        return self.exec_ids[0] if self.exec_ids else None

    @property
    def dedup_hash(self) -> int | None:
        """What events say of its key."""
        hashes = self.dedup_hashes()
        return hashes[0] if hashes else None

    def dedup_hashes(self) -> Sequence[int] | None:
        """What events say of its keys."""
        claims = self.claims
        return claims.hashes if claims.hashes is not None or claims.ids is None else Hashes(claims.ids)

    def column(self, outcome: Outcome = Outcome.OK, sent_back: int | None = None) -> Column:
        """What the store is asked about its claims. It has keys and tokens."""
        claims = self.claims
        assert claims.ids is not None
        assert claims.tokens is not None
        return Column(claims.ids, claims.day, self.attempt, claims.tokens, outcome, sent_back)

    def base_column(self) -> Column:
        """What the store gets once a replay succeeded: its message is no longer dead, whichever worker holds its key."""
        assert self.claims.base_id is not None
        return Column([self.claims.base_id], self.claims.day, 1, [WHOEVER])

    # What becomes of it.

    def postpone(self, until: float, why: str) -> None:
        """It comes up again at `until` (monotonic seconds), from the stage it has reached."""
        self.not_before = until
        self.why = why

    def rule(self, disposition: Disposition) -> None:
        """Its fate is decided."""
        self.disposition = disposition
        self.stage = Stage.RULED

    def run_again(self, *, at_most: int) -> None:
        """It would have died with others, and runs again in a batch of `at_most`: same claim, same attempt."""
        self.stage = Stage.ADMITTED
        self.disposition = self.send_back = None
        self.began = False
        self.at_most = at_most

    def forget_claim(self) -> None:
        """Back to where it was fetched: whatever was decided without an outcome that stands is decided again."""
        self.stage = Stage.FETCHED
        self.claims.forget()
        self.began = self.recorded = False
        self.disposition = self.send_back = self.copy = self.leader = None
        self.publishes = []

    def suspend(self, until: float, due_ms: int) -> None:
        """Its attempt failed, and the next one is here: at `until` (monotonic seconds), which is `due_ms` (epoch milliseconds)."""
        why = self.error or ""
        self.failure = self.disposition.failure if isinstance(self.disposition, Suspended) else None
        self.forget_claim()
        self.in_place += 1
        self.due_ms = due_ms
        for message in self.made or ():
            message.in_place = self.in_place
        self.postpone(until, why)

    def undo(self) -> None:
        """Back to where it was fetched, and nothing that its handler did has happened: it was rolled back."""
        self.forget_claim()
        self.succeeded = False

    def cut(self, number: int) -> Self:
        """Its first `number` messages, which it does not have any more."""
        head = self._part(range(number))
        self._keep(range(number, len(self)))
        return head

    def snapshot(self) -> Self:
        """Return the run as it is now, which does not change with it."""
        taken = copy(self)
        taken.claims = replace(self.claims)
        return taken

    def _part(self, places: Sequence[int]) -> Self:
        """Return a copy of the run with the messages at `places`. They stay in this one, too, until `keep`."""
        part = object.__new__(type(self))  # as `copy` does, in a third of the time: handlers of messages take each run apart
        vars(part).update(vars(self))
        if self.register is not None and self in self.register:
            self.register[part] = self.register[self]
        part._keep(places)
        return part

    def _keep(self, places: Sequence[int]) -> None:
        facts = vars(self)
        for name in _COLUMNS:
            if (column := facts[name]) is not None:
                facts[name] = [column[place] for place in places]
        if self.size:
            self.size = sum(sizes_of(self.records))
        self.claims = self.claims.part(places)
        if not places and self.register is not None:
            self.register.pop(self, None)


def pick(runs: list[Run], run: Run, places: Collection[int]) -> list[Run]:
    """Let the messages at `places` fall out of `run`, each as a run of one; returns those in the order of their places.

    They are added to `runs`, which a run that nothing is left of is taken out of.
    """
    return divide(runs, run, [[place] for place in sorted(places)]) if places else []


def divide(runs: list[Run], run: R, parts: Sequence[Sequence[int]]) -> list[R]:
    """Let the messages at the places of each of `parts` leave `run` together. Otherwise as `pick`."""
    if not parts:
        return []
    if len(parts) == 1 and len(parts[0]) == len(run):
        return [run]
    fallen = [run._part(places) for places in parts]
    gone = {place for places in parts for place in places}
    run._keep([place for place in range(len(run)) if place not in gone])
    if not len(run):
        runs.remove(run)
    runs += fallen
    return fallen


def apart(runs: list[Run], run: Run) -> list[Run]:
    """Let all messages of `run` go their own ways, each as a run of one."""
    return [run] if len(run) == 1 else pick(runs, run, range(len(run)))


def in_order(runs: list[Run], some: Sequence[Run]) -> list[Run]:
    """`some` of `runs` in the order of their offsets; those that lie in each other are taken apart for that."""
    ordered = sorted(some, key=_first)
    tangled = {id(run) for before, after in pairwise(ordered) if before.last > after.first for run in (before, after)}
    if not tangled:
        return ordered
    return in_order(runs, [single for run in ordered for single in (apart(runs, run) if id(run) in tangled else [run])])


def count(runs: Iterable[Run]) -> int:
    """Return how many messages they have."""
    return sum(map(len, runs))


def ranges_of(records: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """The offsets of `records`, which ascend, as `(first, behind the last)` of each range without a hole."""
    begin, last = records[0].offset, records[-1].offset
    if last - begin + 1 == len(records):
        yield begin, last + 1
        return
    end = begin
    for record in records:
        if record.offset != end:
            yield begin, end
            begin = record.offset
        end = record.offset + 1
    yield begin, end


def size_of(records: Sequence[Any]) -> int:
    """The sum of `sizes_of`, without a step of Python for each record that has no headers."""
    if any(map(_HEADERS, records)):
        return sum(sizes_of(records))
    return sum(map(len, filter(None, map(_VALUE, records)))) + sum(map(len, filter(None, map(_KEY, records))))


def sizes_of(records: Iterable[Any]) -> list[int]:
    """The raw bytes of each of `records`: its key, its value, its headers."""
    return [
        len(record.value or b"")
        + len(record.key or b"")
        + (sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else 0)
        for record in records
    ]


_first = attrgetter("first")


def making_messages(runs: Iterable[Run]) -> Callable[[], list[Message[Any]]]:
    """Return what makes the messages of `runs` as they are now, whenever they are read and whatever became of the runs meanwhile."""
    now = [(run.place, run.records, run.values or (), run.claims.grant.epoch or None, run.in_place, run.made) for run in runs]

    def make() -> list[Message[Any]]:
        messages: list[Message[Any]] = []
        for place, records, values, fencing_token, in_place, made in now:
            if made is not None:
                messages += made
                continue
            for record, value in zip(records, values, strict=True):
                messages.append(message := Message(record, value, place))
                message.fencing_token, message.in_place = fencing_token, in_place
        return messages

    return make
