"""The memory store in columns, which keeps blocks of keys, answers and remembers what the transition table does key by key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from ackwise.middleware.storage.claimstore import (
    Claim,
    ClaimKey,
    Column,
    ColumnExchange,
    Exchange,
    ExchangeResult,
    Outcome,
    checked,
    in_columns,
)
from ackwise.stores.conformance import Clock
from ackwise.stores.memory import MemoryStore
from ackwise.stores.protocol.transitions import Place, Record, decide

LEASE, RETENTION = 64.0, 192.0
DAYS = (None, 19_000)
IDS = [bytes([number]) * 16 for number in range(8)]


class Table:
    """The transition table over a dictionary, asked key by key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.records: dict[Place, Record] = {}

    async def open(self) -> None:
        """Nothing to open."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        result, written = decide(self.records.get, exchange, self.clock())
        self.records |= written
        return result

    async def close(self) -> None:
        """Nothing to close."""


def a_column(chance: random.Random, *, outcome: Outcome = Outcome.OK, sent_back: int | None = None) -> Column:
    """Keys in a row most of the time, with tokens that go with their places, so that a later column may continue an earlier one."""
    begin = chance.randint(0, 5)
    places = range(begin, chance.randint(begin, 8)) if chance.random() < 0.7 else chance.sample(range(8), chance.randint(1, 8))
    base = chance.choice([1, 1, 1, 101])
    tokens: Sequence[int] = [base + place for place in places]
    if isinstance(places, range) and chance.random() < 0.8:
        tokens = range(base + places.start, base + places.stop)
    return Column([IDS[place] for place in places], chance.choice(DAYS), chance.choice([1, 1, 2]), tokens, outcome, sent_back)


def some_columns(chance: random.Random, most: int) -> list[Column]:
    return [a_column(chance, outcome=chance.choice(list(Outcome))) for _ in range(chance.choice([0, *range(most + 1)]))]


def an_exchange(chance: random.Random) -> ColumnExchange:
    """A key may stand in several kinds, and in several columns of a kind."""
    return ColumnExchange(
        some_columns(chance, 2),
        some_columns(chance, 2),
        [a_column(chance, sent_back=chance.choice([None, 2]))] if chance.random() < 0.2 else [],
        some_columns(chance, 1),
        LEASE,
        RETENTION,
        chance.choice(["", "one", "other"]),
        chance.choice([(), (), ("one",), ("one", "other")]),
    )


@pytest.mark.slow  # makes thousands of exchanges, each in both shapes
async def test_random_exchanges_in_columns_are_answered_and_kept_as_key_by_key() -> None:
    chance = random.Random(20261123)
    for _ in range(600):
        clock = Clock()
        store, table = MemoryStore(clock=clock), Table(clock)
        for _ in range(12):
            clock.now += chance.choice([0.0, 0.0, 16.0, LEASE, RETENTION])
            exchange = an_exchange(chance)
            assert checked(exchange, await store.exchange_columns(exchange)) == await in_columns(table).exchange_columns(exchange)
            if chance.random() < 0.3:  # a caller of the older shape beside it
                single = Exchange([Claim(ClaimKey(chance.choice(IDS), chance.choice(DAYS), 1), 201)], lease=LEASE, retention=RETENTION)
                assert await store.exchange(single) == await table.exchange(single)
            for place in [(key_id, day) for key_id in IDS for day in DAYS]:
                assert remembered(store._find(place), clock.now) == remembered(table.records.get(place), clock.now)


def remembered(record: Record | None, now: float) -> tuple[Record, str] | None:
    """The record, and the owner that is no field of it."""
    return (record, record.owner) if record is not None and now < record.kept_until else None


@pytest.mark.parametrize("parts", [1, 2, 20])
async def test_nothing_of_a_column_stays_after_the_retention(parts: int) -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    for number in range(30):
        ids, tokens = [bytes([number, place]) * 8 for place in range(20)], range(1, 21)
        await store.exchange_columns(ColumnExchange([Column(ids, number, 1, tokens)], lease=LEASE, retention=RETENTION))
        for part in range(parts):
            done = Column(ids[part::parts], number, 1, tokens[part::parts])
            await store.exchange_columns(ColumnExchange(completes=[done], lease=LEASE, retention=RETENTION))
        now[0] += RETENTION / 4
        assert len(store._days) <= 5
        assert len(store._written) <= 5 * parts
    now[0] += RETENTION
    assert await store.cleanup() == 4 * 20
    assert not store._days
    assert not store._written


async def test_a_column_that_is_renewed_for_long_keeps_nothing_else() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    long = Column([bytes(16)], None, 1, [1])
    await store.exchange_columns(ColumnExchange([long], lease=LEASE, retention=RETENTION))
    for number in range(1, 40):
        now[0] += LEASE / 2
        short = Column([bytes([number, place]) * 8 for place in range(20)], None, 1, range(1, 21))
        await store.exchange_columns(ColumnExchange([short], [], [], [long], LEASE, RETENTION))
        await store.exchange_columns(ColumnExchange(completes=[short], lease=LEASE, retention=RETENTION))
    assert len(store._days[None]) < 20 * (2 * RETENTION / LEASE + 4)


async def test_a_column_is_kept_as_it_was_asked_about() -> None:
    store, ids, tokens = MemoryStore(), IDS[:3], [1, 2, 3]
    await store.exchange_columns(ColumnExchange([Column(ids, None, 1, tokens)]))
    ids.reverse()
    tokens[:] = [7, 7, 7]
    record = store._find((IDS[0], None))
    assert record is not None
    assert record.token == 1
