"""What `ackwise topics skip` takes for unreadable: never more than the batch that is broken, whatever that says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from tests.plugin.logs import Logs, batch, corrupt, endless

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.kafka.topicreader import Bounds, TopicReader
from ackwise.plugin.operate.skipping import Passage, _require_within, _where_it_stands

ORDERS = TopicPartition("orders", 0)

TEN = [b"%d" % number for number in range(10)]


def claiming(made: tuple[int, bytes], delta: int) -> tuple[int, bytes]:
    """The batch with another last offset than its checksum says."""
    after, raw = made
    return after, raw[:23] + delta.to_bytes(4, "big", signed=True) + raw[27:]


class Segments(Logs):
    """What a broker has that answers with one batch at a time."""

    def _answer(self, partition: TopicPartition, offset: int) -> tuple[Any, ...]:
        *head, _ = super()._answer(partition, offset)
        return (*head, next((raw for after, raw in self.logs[partition] if after > offset), b""))


async def stuck_in(logs: Logs, committed: int) -> Any:
    async def bounds(partitions: Any) -> Any:
        return {ORDERS: Bounds(0, logs.logs[ORDERS][-1][0])}

    reader: Any = TopicReader(cast(Any, SimpleNamespace(_client=logs)))
    reader._leaders, reader.bounds = {ORDERS: 0}, bounds
    return await _where_it_stands(reader, ORDERS, committed)


@pytest.mark.parametrize("kind", [Logs, Segments])
async def test_a_broken_batch_ends_where_the_next_whole_one_begins_whatever_its_head_says(kind: type[Logs]) -> None:
    for delta in (2**30, 2**31 - 1, 15, 9, -1, -5, -(2**31)):
        logs = kind({ORDERS: [batch(0, *TEN), claiming(corrupt(batch(10, *TEN)), delta), batch(20, *TEN), batch(30, *TEN)]})
        stuck = await stuck_in(logs, 10)
        assert (stuck.at, stuck.base, stuck.end, stuck.error) == (10, 10, 20, "CorruptRecordException"), delta
        _require_within(Passage(*ORDERS, 10, 19), 10, stuck)
        with pytest.raises(ConfigurationError, match="is not what can't be read"):
            _require_within(Passage(*ORDERS, 10, 20), 10, stuck)
    logs = kind({ORDERS: [batch(0, *TEN), endless(claiming(batch(10, *TEN), 2**30)), batch(20, *TEN)]})
    stuck = await stuck_in(logs, 10)
    assert (stuck.at, stuck.end, stuck.error) == (10, 20, "RecordTooLargeError"), "bytes without a whole batch"


async def test_a_broken_batch_at_the_end_ends_with_the_log() -> None:
    for delta in (2**30, -5):
        stuck = await stuck_in(Logs({ORDERS: [batch(0, *TEN), claiming(batch(10, *TEN), delta)]}), 10)
        assert (stuck.at, stuck.end) == (10, 20)


async def test_a_head_that_says_too_little_leaves_the_rest_to_the_next_call() -> None:
    logs = Logs({ORDERS: [claiming(batch(0, *TEN), 3), batch(10, *TEN)]})
    assert [(stuck.at, stuck.end) for stuck in (await stuck_in(logs, 0), await stuck_in(logs, 4))] == [(0, 4), (4, 10)]


async def test_what_a_broken_batch_has_inside_is_never_taken_for_the_end_of_more_than_it() -> None:
    _, inner = batch(25, b"inner")
    logs = Logs({ORDERS: [claiming(corrupt(batch(0, *TEN[1:], inner)), 2**30), batch(10, *TEN), batch(20, *TEN)]})
    assert (await stuck_in(logs, 0)).end == 10
