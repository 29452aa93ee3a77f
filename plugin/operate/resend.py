"""The engine that resends messages: a `Source` yields candidates, a guard claims their keys, and copies go to the retry topic.

Portions can be repeated: a kill leaves at most one portion sent and not noted; its second copies are suppressed by the store. The
claim is of the attempt that ended: while it is held no worker starts the message. After the acknowledgement it is released for the
next attempt, which makes older deliveries stale. Guards send only requests that workers send too. `Origins` reads source topics.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import json
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from aiokafka import TopicPartition

from ackwise.middleware.errors import AckwiseError, PublishRefused
from ackwise.middleware.events import EventCode, EventSink
from ackwise.middleware.message.disposition import Unrecorded
from ackwise.middleware.message.message import Origin
from ackwise.middleware.message.wire import Copy, retry_copy
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup, Transactional
from ackwise.middleware.runs.run import Run
from ackwise.middleware.storage.claimstore import (
    Acquired,
    AlreadyDone,
    Busy,
    Claim,
    ClaimAnswer,
    ClaimKey,
    ClaimStore,
    Exchange,
    Release,
    Stale,
)
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.plugin.kafka.topicreader import Bounds, TopicReader, Unreadable
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.topicadmin import ensure_topics_of

T = TypeVar("T")

#: Places of each fate that are named.
_SHOWN: Final = 20


class Fate(enum.StrEnum):
    """What became of a message, in the words that are printed."""

    SENT = "sent"
    READY = "would be sent"
    REFUSED = "refused by the broker for good"
    HANDLERLESS = "its handler is no longer in the app"

    # Of a dead letter alone.
    FOREIGN = "not written by this group, or not readable"
    ORIGINLESS = "no message of a handler: it was found in a topic of the group itself"
    RENAMED = "a header's name is no UTF-8, which a copy can't carry"
    SHORTENED = "it was shortened, and its origin is no longer there"
    EXPIRED = "expired, needs --expired"

    # Of a step of a plan alone.
    DONE = "done already"
    FOLLOWED = "a later attempt is on its way"
    EMPTY = "the broker has no record there"
    HELD = "held by a worker, which may be running it"
    DELETED = "no longer in the log"
    REPLACED = "another record is there now"
    OTHER_EPOCH = "of another dedup epoch than the app's"
    OTHER_KEY = "its key is not the one in the events"
    UNGUARDED = "nothing would suppress a second run, needs --with-review"
    REVIEWABLE = "for review, needs --with-review"
    MANUAL = "for people to fix"


#: What the operator of this group still has to do: it makes the exit code 1. Several groups may share a dead-letter topic.
_OPEN: Final = frozenset(Fate) - {Fate.SENT, Fate.READY, Fate.FOREIGN, Fate.DONE, Fate.FOLLOWED, Fate.EMPTY}

#: What another run of a plan may do, once something has changed or with another option.
AGAIN: Final = frozenset({Fate.HELD, Fate.HANDLERLESS, Fate.OTHER_EPOCH, Fate.OTHER_KEY, Fate.UNGUARDED, Fate.REVIEWABLE})


@dataclass(eq=False, slots=True)
class Candidate:
    """A message for one handler. `run` has what is sent; `fate` is `None` until it is known."""

    handler: str
    run: Run
    reason: str
    """The reason that its copy gives."""
    attrs: Mapping[str, Any]
    """What its event says."""
    fate: Fate | None = None
    lost_its_copy: bool = False
    """The store waits for a copy that is lost."""
    ran: Unrecorded | None = None
    """The run that had its key, if no event names it yet."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """Messages that are counted and named together; `of` is what they are of."""

    of: T
    kind: tuple[str, ...]
    place: str
    candidates: Sequence[Candidate]
    others: Mapping[Fate, int] = field(default_factory=dict)
    """How many have another fate without being candidates."""

    @property
    def fates(self) -> Counter[Fate]:
        """How many had which fate, as far as it is known; what has none may be sent."""
        return Counter(self.others) + Counter(each.fate or Fate.READY for each in self.candidates)


@dataclass
class Resent:
    """What became of messages."""

    counts: dict[tuple[str, ...], Counter[Fate]] = field(default_factory=dict)
    """By the kind of their piece."""
    places: dict[Fate, list[str]] = field(default_factory=dict)
    """Of each fate that leaves something to do, the first places."""
    recorded: bool = True
    """Whether events say what was sent."""
    earlier: int = 0
    """How many an earlier call was done with."""
    stopped: bool = False
    """It was asked to stop before the end."""

    def add(self, kind: tuple[str, ...], fates: Mapping[Fate, int], place: str) -> None:
        """Count messages of one place."""
        self.counts.setdefault(kind, Counter()).update(fates)
        for fate in _OPEN.intersection(fates):
            if len(shown := self.places.setdefault(fate, [])) < _SHOWN:
                shown.append(place)

    @property
    def fates(self) -> Counter[Fate]:
        """How many had which fate."""
        return sum(self.counts.values(), Counter[Fate]())

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.places and not self.stopped


def open_ones(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those whose fate is not known yet."""
    return [each for each in candidates if each.fate is None]


S = TypeVar("S")

#: Messages that are looked up, guarded and sent together.
_PORTION: Final = 100

#: What is written of a message that was sent, or found to need no copy: the next reconciliation learns it only from this.
_SAID: Final = {Fate.SENT: EventCode.REDELIVERED, Fate.DONE: EventCode.DUP_SUPPRESSED, Fate.FOLLOWED: EventCode.STALE}


class Source(Protocol[T]):
    """Where the messages come from."""

    charges: bool  #: whether the attempt that ended counts

    def pieces(self, most: int) -> AsyncIterator[Piece[T]]:
        """Pieces of at most `most` records. A message that can't be sent has its fate, each other one has none."""
        ...

    def guarded(self, portion: Sequence[Piece[T]]) -> AbstractAsyncContextManager[None]:
        """Gives a fate to those that may not be sent now. When the block ends, those with the fate SENT are noted."""
        ...

    def note(self, portion: Sequence[Piece[T]]) -> None:
        """All of a portion has a fate."""


class Sender:
    """Sends copies to the retry topic of `app`, and records each for the next reconciliation."""

    def __init__(self, app: Group) -> None:
        """Raises `ConfigurationError` for events that can't be written."""
        self._app = app
        self._publisher = KafkaPublisher(app.settings)
        self.sink: EventSink | None = app.slots.open_sink(app.settings.group, app.sources)
        self.worker = Worker(
            group=app.settings.group,
            later=app.slots.later,
            publisher=self._publisher,
            retry_topic=app.names.retry,
            dead_letter_topic=app.names.dead_letter,
            delay_topic=app.names.delay,
            dedup=app.dedup,
            sink=self.sink,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[KafkaPublisher]:
        """With every topic there, and everything open that sending takes. Raises `AckwiseError`."""
        await ensure_topics_of(self._app)
        async with AsyncExitStack() as opened:
            if self.sink is not None:
                opened.push_async_callback(self.sink.close)
                await self.sink.open()
            opened.push_async_callback(self._publisher.stop)
            await self._publisher.start()
            yield self._publisher

    async def send(self, source: Source[T], portion: Sequence[Piece[T]]) -> None:
        """Send copies of those without a fate. Raises `AckwiseError` if some have no answer; those that have are noted then."""
        candidates = [each for piece in portion for each in piece.candidates]
        failed: AckwiseError | None = None
        async with source.guarded(portion):
            going, sent = open_ones(candidates), list[Candidate]()
            copies = [self._copy(each, charged=source.charges) for each in going]
            for each, answer in zip(going, await self._publisher.publish(copies), strict=True):
                if answer is None:
                    sent.append(each)
                elif isinstance(answer, PublishRefused):
                    each.fate = Fate.REFUSED
                else:
                    failed = failed or answer
            for each in candidates:
                self._record(each, Fate.SENT if each in sent else each.fate)
            await self.worker.make_durable()
            for each in sent:  # only now: a copy without an event would be taken for a foreign one
                each.fate = Fate.SENT
        if failed is not None:
            raise failed

    def _copy(self, each: Candidate, *, charged: bool) -> Copy:
        delivery, now = each.run.delivery, round(self.worker.wall() * 1000)
        return retry_copy(
            delivery, topic=self.worker.retry_topic, partition=delivery.partition, group=self.worker.group, handler=each.handler, due=now,
            now_ms=now, reason=each.reason, charged=charged,
        )  # fmt: skip

    def _record(self, each: Candidate, fate: Fate | None) -> None:
        """In the coordinates of the origin, and said to be elsewhere: the group has not read it there now."""
        if fate is None or fate not in _SAID:
            return
        attrs = dict(each.attrs)
        if each.ran is not None:
            each.run.exec_ids = [each.ran.exec_id]
            attrs |= each.ran.attributes(str(each.run.origin))
        self.worker.record(
            _SAID[fate], each.handler, each.run, with_exec_id=each.ran is not None, attrs=json.dumps(attrs),
            phys_topic=self.worker.retry_topic, phys_partition=each.run.delivery.partition,
        )  # fmt: skip


async def resend(source: Source[T], sender: Sender, outcome: Resent, *, execute: bool, rate: float, stop: asyncio.Event | None) -> Resent:
    """Send what `source` has, at most `rate` copies per second; without `execute` only count what would be sent.

    After `stop` the portion at hand is finished. Raises `AckwiseError`: what was noted is done, and calling it again goes on.
    """
    most, begun, sent = min(_PORTION, max(1, round(rate))), time.monotonic(), 0
    async for portion in portioned(source.pieces(most), most, lambda piece: len(piece.candidates)):
        if execute:
            await sender.send(source, portion)
        source.note(portion)
        for piece in portion:
            outcome.add(piece.kind, piece.fates, piece.place)
        if stop is not None and stop.is_set():
            outcome.stopped = True
            break
        if now_sent := sum(piece.fates[Fate.SENT] for piece in portion):
            sent += now_sent
            await _wait(begun + sent / rate - time.monotonic(), stop)
    return outcome


async def portioned(items: AsyncIterator[S], most: int, weight: Callable[[S], int] = lambda item: 1) -> AsyncIterator[list[S]]:
    """Several together, as soon as they weigh `most`. Each weighs 1 at least."""
    portion, weighs = list[S](), 0
    async for item in items:
        portion.append(item)
        weighs += max(1, weight(item))
        if weighs >= most:
            yield portion
            portion, weighs = [], 0
    if portion:
        yield portion


async def _wait(seconds: float, stop: asyncio.Event | None) -> None:
    """Until that, or `stop`."""
    if seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await (stop or asyncio.Event()).wait()
        except TimeoutError:
            pass


Led = tuple[ClaimKey, list[Candidate]]
"""Candidates of one key, the highest attempt first: it leads, and the others share its answer."""


class ClaimGuard:
    """Asks the store of `Dedup`. A run that goes on after a kill asks with the same tokens, so it need not wait for leases."""

    suppresses = True  #: what was done already is not run again, if a copy of it is sent all the same

    def __init__(self, store: ClaimStore, policy: Dedup, plan_id: str) -> None:
        self.store = store
        self._lease, self._retention = float(policy.lease), float(policy.retention)
        self._plan_id = plan_id

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """Gives a fate to those that may not be sent. The others are held until the block ends, and then released:
        those with the fate SENT for their next attempt. Raises `StoreUnavailable`.
        """
        leaders = _by_key(candidates)
        claims = [Claim(key, self._token(key.id)) for key, _ in leaders]
        answers = (await self.store.exchange(self._exchange(claims=claims))).claims if claims else []
        held = [(led, claim) for (_, led), claim, answer in zip(leaders, claims, answers, strict=True) if _is_granted(led, answer)]
        try:
            yield
        finally:
            if held:
                releases = [Release(*claim, sent_back=_next_attempt(led)) for led, claim in held]
                await self.store.exchange(self._exchange(releases=releases))

    def _exchange(self, *, claims: Sequence[Claim] = (), releases: Sequence[Release] = ()) -> Exchange:
        return Exchange(claims=claims, releases=releases, lease=self._lease, retention=self._retention)

    def _token(self, key_id: bytes) -> int:
        """Positive, below 2**63, and the same for each run of this plan."""
        digest = hashlib.blake2b(key_id + self._plan_id.encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 2) + 1


class InboxGuard:
    """Asks the database of `Transactional`, in one transaction for all that are sent together."""

    def __init__(self, store: TransactionalStore, policy: Transactional) -> None:
        self.store = store
        self._retention = float(policy.retention)
        self.suppresses = policy.mode == "inbox"  # where offsets are kept, a copy is not told from the record that was passed

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """See `ClaimGuard.asked`."""
        leaders = _by_key(candidates)
        async with self.store.begin(retention=self._retention) as transaction:
            answers = await transaction.claim([key for key, _ in leaders]) if leaders else []
            taken = [(key, led) for (key, led), answer in zip(leaders, answers, strict=True) if _is_granted(led, answer)]
            yield
            finishes = [Finish(key, led[0].run.delivery.origin[:3], 0, None, _next_attempt(led) or key.attempt) for key, led in taken]
            if finishes:
                await transaction.finish(finishes)


def guard_of(group: Group, plan_id: str) -> ClaimGuard | InboxGuard | None:
    """The guard that asks the store which knows what was done; `None` without one."""
    policy = group.dedup
    if isinstance(policy, Dedup) and (store := group.slots.open_store()) is not None and type(store).__module__ != "ackwise.stores.memory":
        return ClaimGuard(store, policy, plan_id)
    if isinstance(policy, Transactional) and (inbox := group.slots.open_inbox()) is not None:
        return InboxGuard(inbox, policy)
    return None


def _by_key(candidates: Sequence[Candidate]) -> list[Led]:
    found: dict[bytes, list[Candidate]] = {}
    keys: dict[bytes, ClaimKey] = {}
    for each in sorted(candidates, key=lambda each: -each.run.delivery.attempt):
        if (key := each.run.key) is not None:
            keys.setdefault(key.id, key)
            found.setdefault(key.id, []).append(each)
    return [(keys[key_id], led) for key_id, led in found.items()]


def _is_granted(led: Sequence[Candidate], answer: ClaimAnswer | TransactionAnswer) -> bool:
    """Whether these may be sent and are held; otherwise they have their fate."""
    match answer:
        case Acquired() | Taken():
            return True
        case Finished(None):  # its handler committed it unseen: how much of it is done is unknown
            for each in led:
                each.fate = Fate.MANUAL
        case AlreadyDone() | Finished():
            for each in led:
                each.fate = Fate.DONE
                each.ran = Unrecorded.read(answer.unrecorded) if isinstance(answer, AlreadyDone) else None
        case Stale():
            for each in led:
                each.fate = None if each.lost_its_copy else Fate.FOLLOWED
        case Busy():
            for each in led:
                each.fate = Fate.HELD
    return False


def _next_attempt(led: Sequence[Candidate]) -> int | None:
    """The attempt of the copy that is on its way, if one is."""
    return max((each.run.delivery.attempt + 1 for each in led if each.fate is Fate.SENT), default=None)


#: Seconds for which the ends of a log are taken for what they were: asking for each of a thousand steps would take long.
_FRESH: Final = 5.0


class Origins:
    """The logs of the source topics. Each call raises `Unavailable`."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._there: dict[str, frozenset[TopicPartition]] = {}
        self._bounds: dict[TopicPartition, tuple[float, Bounds]] = {}
        self._held: tuple[TopicPartition | None, int, list[Any], int] = None, 0, [], 0
        """What was read last: a partition, from where, the records, and the offset that they go to."""

    async def bounds(self, partition: TopicPartition) -> Bounds:
        """What the log has; nothing where there is no such partition."""
        if partition.topic not in self._there:
            self._there[partition.topic] = frozenset(await self._reader.partitions([partition.topic]))
        if partition not in self._there[partition.topic]:
            return Bounds(0, 0)
        asked_at, known = self._bounds.get(partition, (-_FRESH, Bounds(0, 0)))
        if time.monotonic() - asked_at >= _FRESH:
            known = (await self._reader.bounds([partition]))[partition]
            self._bounds[partition] = time.monotonic(), known
        return known

    async def read(self, partition: TopicPartition, start: int, end: int, most: int) -> tuple[list[Any], int]:
        """At most `most` records of [`start`, `end`), which the log has, and the offset that they go to.

        What is below that and not among them, is not there. Raises `Unreadable` where the log has less than it had.
        """
        held, first, records, through = self._held
        if held != partition or not first <= start < through:
            ends = (await self.bounds(partition)).end
            if ends <= start:
                raise Unreadable(f"{partition.topic}/{partition.partition} ends at {ends} now and had a record at {start}; start again")
            records, through = await self._reader.portion(partition, start, ends)
            self._held = partition, start, records, through
        at = bisect_left(records, start, key=attrgetter("offset"))
        found = records[at : min(at + most, bisect_left(records, end, key=attrgetter("offset")))]
        return found, found[-1].offset + 1 if len(found) == most else min(end, through)

    async def record(self, origin: Origin) -> Any:
        """One record; `None` if it is no longer there, or another one is now."""
        partition = TopicPartition(origin.topic, origin.partition)
        start, end = await self.bounds(partition)
        found = await self._reader.first(partition, origin.offset, origin.offset + 1) if start <= origin.offset < end else None
        return None if found is None or found.timestamp != origin.timestamp_ms else found
