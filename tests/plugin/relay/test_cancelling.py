"""Messages that are cancelled while they wait: what the relay drops, what it says of that, and what it answers to whoever cancels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from aiokafka.errors import KafkaConnectionError

from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.wire import Copy, retry_copy, waiting_copy
from ackwise.plugin.group.budget import Budget
from ackwise.plugin.group.recordbatches import RecordBatch
from ackwise.plugin.group.relaycounts import DelayCounts
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.relay.line import DelayLine

LEVELS = DelayLevels("1s 10s 1m")
NAMES = TopicNames("billing", LEVELS)

_Answer = PublishUnavailable | PublishRefused | None


class Books:
    """What happens, in order: cancellations read, events recorded and durable, records sent. It is publisher, sink and cancel topic."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.sent: list[Copy] = []
        self.events: list[Event] = []
        self.keys: set[bytes] = set()
        self.cancelled_by_the_end: set[bytes] = set()  #: what a reading adds to `keys`
        self.topic_is_away = self.log_is_away = self.brokers_are_away = False

    @property
    def hashes(self) -> set[int]:
        return set(map(hash, self.keys))

    async def read(self) -> None:
        self.log.append("read")
        if self.topic_is_away:
            raise KafkaConnectionError("no cancel topic")
        self.keys |= self.cancelled_by_the_end

    async def publish(self, copies: Sequence[Copy]) -> list[_Answer]:
        self.log += [f"publish {len(copies)}"]
        if self.brokers_are_away:
            return [PublishUnavailable("away") for _ in copies]
        self.sent += copies
        return [None] * len(copies)

    def record(self, event: Event) -> None:
        self.log.append(event.code.name)
        self.events.append(event)

    async def flush(self) -> None:
        self.log.append("flush")
        if self.log_is_away:
            raise EventLogUnavailable("disk full")

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class PackingBooks(Books):
    """The same, and it takes whole batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.refuses_batches = False

    def new_batch(self, topic: str, partition: int) -> RecordBatch:
        return RecordBatch(topic, partition)

    async def send(self, batches: Sequence[RecordBatch]) -> list[_Answer]:
        self.log.append(f"send {len(batches)}")
        if self.brokers_are_away:
            return [PublishUnavailable("away") for _ in batches]
        if self.refuses_batches:
            return [PublishRefused("too large") for _ in batches]
        for batch in batches:
            self.batches.append(len(batch))
            self.sent += batch.copies()
        return [None] * len(batches)


class Desk:
    """A line of level 10s, where time passes when a test says so."""

    def __init__(self, books: Books, *, has_events: bool = True, budget: int = 10**6) -> None:
        self.now = 1_000.0
        self.books = books
        self.counts = DelayCounts()
        self.budget = Budget(budget)
        self.line = DelayLine(
            NAMES.delays[1], 2, 0, names=NAMES, levels=LEVELS, publisher=books, clock=lambda: self.now, counts=self.counts,
            cancellations=books, sink=books if has_events else None, budget=self.budget,
        )  # fmt: skip

    def put(self, *offsets: int, due: float = 1_005.0, handler: str = "bill", replay_id: bytes | None = None, value: bytes = b"") -> None:
        self.line.offer([self.record(offset, due, handler, replay_id, value) for offset in offsets])

    def record(self, offset: int, due: float, handler: str, replay_id: bytes | None = None, value: bytes = b"") -> Delivery:
        origin = Origin("orders", 2, offset + 100, 7)
        message = Delivery(*origin, b"key", value or b"%d" % offset, (("trace", b"t"),), origin, replay_id=replay_id)
        copy = retry_copy(
            message, topic=NAMES.delays[1], partition=2, group="billing", handler=handler, due=round(due * 1000), now_ms=0, reason="Later"
        )
        here = Origin(copy.topic, 2, offset, round(self.now * 1000))
        return Delivery(*here, copy.key, copy.value, copy.headers, here)

    def key(self, offset: int, handler: str = "bill", replay_id: bytes | None = None) -> bytes:
        return waiting_copy(self.record(offset, 0.0, handler, replay_id).headers, "billing")[1]

    @property
    def sent(self) -> list[bytes | None]:
        return [copy.value for copy in self.books.sent]


def test_a_cancellation_names_the_message_its_record_its_replay_and_its_handler() -> None:
    desk = Desk(Books())
    assert desk.key(5) == b"orders/2/105/7//bill"
    assert desk.key(5, "ship", b"r1") == b"orders/2/105/7/7231/ship"


@pytest.fixture(params=[Books, PackingBooks])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param())


async def test_a_cancelled_message_does_not_come_back_and_its_neighbours_do_and_without_events_it_is_dropped_all_the_same(
    desk: Desk,
) -> None:
    for here in (desk, Desk(type(desk.books)(), has_events=False)):
        here.put(0, 1, 2)
        here.put(3, handler="ship")
        here.put(4, replay_id=b"r")
        here.put(5, due=1_100.0)  # it would hop to another level
        here.books.keys |= {here.key(offset) for offset in (1, 3, 4, 5)}
        here.now = 1_005.0
        await here.line.turn()
        here.now = 1_010.0
        await here.line.turn()
        assert (here.sent, here.line.watermark.commit, here.counts.cancelled) == ([b"0", b"2", b"3", b"4"], 6, 2)
        assert len(here.books.events) == (2 if here is desk else 0)


async def test_it_is_recorded_where_it_came_from_and_durable_before_the_relay_may_commit(desk: Desk) -> None:
    desk.put(0)
    desk.books.keys.add(desk.key(0))
    desk.now = 1_005.0
    desk.books.log_is_away = True
    assert await desk.line.turn() == 0.5
    assert desk.line.watermark.commit == 0, "as long as the event is not durable, the copy is there"
    desk.books.log_is_away = False
    await desk.line.turn()
    assert desk.line.watermark.commit == 1
    event = desk.books.events[-1]
    assert event[:6] == (EventCode.CANCELLED, "orders", 2, 100, "bill", 2)
    assert (event.phys_topic, event.phys_partition, event.phys_offset, event.due_ms) == (NAMES.delays[1], 2, 0, 1_005_000)
    assert desk.sent == []


async def test_cancellations_are_read_to_the_end_after_a_message_is_due_and_before_it_moves(desk: Desk) -> None:
    """What was acknowledged a moment before it was due is seen, however long ago the topic was read last."""
    desk.put(0)
    await desk.line.turn()
    assert desk.books.log == []
    desk.books.cancelled_by_the_end.add(desk.key(0))
    desk.now = 1_005.0
    await desk.line.turn()
    assert (desk.books.log[0], desk.sent) == ("read", [])


async def test_nothing_moves_and_nothing_is_lost_while_the_cancellations_can_t_be_read(desk: Desk) -> None:
    desk.put(0, 1)
    desk.now, desk.books.topic_is_away = 1_005.0, True
    assert [await desk.line.turn() for _ in range(3)] == [0.5, 1.0, 2.0]
    assert (desk.sent, desk.line.watermark.commit) == ([], 0)
    desk.books.topic_is_away = False
    await desk.line.turn()
    assert (desk.sent, desk.line.watermark.commit) == ([b"0", b"1"], 2)


async def test_what_is_due_together_is_one_batch_and_order_is_that_of_the_offsets() -> None:
    desk = Desk(books := PackingBooks())
    desk.put(*range(100))
    desk.now = 1_005.0
    await desk.line.turn()
    assert (books.batches, desk.sent) == ([100], [b"%d" % offset for offset in range(100)])
    assert (desk.line.watermark.commit, desk.budget.used) == (100, 0)


async def test_no_record_of_a_batch_is_early_and_none_waits_longer_than_a_fiftieth_of_a_second_for_another() -> None:
    desk = Desk(books := PackingBooks())
    for offset in range(50):
        desk.put(offset, due=1_005.0 + offset / 1000)
    for ms in range(5_000, 5_080):
        desk.now = round(1_000.0 + ms / 1000, 3)
        before = len(books.sent)
        await desk.line.turn()
        for copy in books.sent[before:]:
            late = desk.now * 1000 - int(dict(copy.headers)["ackwise-due"] or b"")
            assert -0.001 < late < 20.001
    assert (len(books.sent), len(books.batches)) == (50, 3)


async def test_a_copy_is_sent_with_its_key_partition_and_headers_as_they_are_packed_or_not() -> None:
    sent = []
    for books in (Books(), PackingBooks()):
        desk = Desk(books)
        desk.put(0, 1, 2)
        desk.now = 1_005.0
        await desk.line.turn()
        sent.append(books.sent)
    assert sent[0] == sent[1]
    assert len(sent[0]) == 3


async def test_a_batch_that_is_not_acknowledged_is_kept_and_its_records_go_on_alone_in_order() -> None:
    for is_refused in (False, True):
        desk = Desk(books := PackingBooks())
        desk.put(0, 1, 2)
        desk.now = 1_005.0
        books.brokers_are_away, books.refuses_batches = not is_refused, is_refused
        assert await desk.line.turn() == 0.5
        assert (desk.line.watermark.commit, desk.sent, desk.budget.used) == (0, [], 0)
        books.brokers_are_away = False
        await desk.line.turn()
        assert (desk.line.watermark.commit, desk.sent) == (3, [b"0", b"1", b"2"])
        assert books.log[-1] == "publish 3"


async def test_offsets_that_are_missing_in_the_log_hold_no_commit_up() -> None:
    desk = Desk(books := PackingBooks())
    desk.put(0, 1, 4, 5, 9)
    desk.now = 1_005.0
    await desk.line.turn()
    assert (desk.line.watermark.commit, books.batches) == (10, [2, 2, 1])


async def test_what_is_due_soon_takes_the_room_of_all_lines_and_what_is_due_later_that_of_its_own() -> None:
    desk = Desk(PackingBooks(), budget=2 * 2**20)
    desk.put(*range(2000), due=1_009.0, value=b"x" * 1000)
    assert not desk.line.is_full(paused=False)
    desk.put(2000, due=1_009.5, value=b"x" * 1_000_000)
    assert desk.line.is_full(paused=False), "more than the share of all lines"
    late = Desk(PackingBooks())
    late.now = 0.0
    late.put(*range(500), due=500.0)
    assert late.line.is_full(paused=False), "due later than is packed ahead"


async def test_a_line_that_is_given_up_counts_for_nothing() -> None:
    desk = Desk(books := PackingBooks())
    desk.put(0, 1)
    assert desk.budget.used > 0
    desk.line.stop()
    assert desk.budget.used == 0
    desk.now = 1_005.0
    await desk.line.turn()
    assert (desk.budget.used, len(books.sent)) == (0, 2)


async def test_copies_that_are_cut_hop_or_are_foreign_go_alone_and_keep_their_place() -> None:
    desk = Desk(books := PackingBooks())
    desk.put(0)
    desk.put(1, due=1_100.0)
    desk.put(2)
    desk.now = 1_010.0
    for _ in range(3):
        await desk.line.turn()
    assert [(copy.topic, copy.value) for copy in books.sent] == [
        ("billing.retry", b"0"),
        ("billing.delay.1m", b"1"),
        ("billing.retry", b"2"),
    ]


async def test_a_line_tells_for_how_long_what_is_due_waits_for_it_and_what_it_has(desk: Desk) -> None:
    desk.put(0, 1, 2)
    await desk.line.turn()
    assert (desk.line.late, desk.line.watermark.count) == (0.0, 3)
    desk.books.brokers_are_away, desk.now = True, 1_035.0
    await desk.line.turn()
    assert (desk.line.late, desk.line.watermark.count) == (30.0, 3)
    desk.books.brokers_are_away, desk.now = False, 1_036.0
    await desk.line.turn()
    assert (desk.line.late, desk.line.watermark.count) == (0.0, 0)
