"""How much of an outbox is read at once over links of any speed."""

from __future__ import annotations

import pytest
from tests.plugin.outbox.desk import fields

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.storage.outbox import MOST_BYTES, OutboxRow
from ackwise.plugin.outbox.readsize import ReadSize

KIB = 1024


class Link:
    """Gives an answer in time to reads of up to `takes` bytes."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.asked: list[int] = []

    async def pending(self, most: int) -> list[OutboxRow]:
        self.asked.append(most)
        if most > self.takes:
            raise StoreUnavailable("no answer within 5 s")
        return []


async def test_a_read_that_fails_is_halved_and_said_and_grows_again_after_32_that_succeed(caplog: pytest.LogCaptureFixture) -> None:
    link, size = Link(MOST_BYTES // 3), ReadSize("shop")
    for _ in range(32):
        await size.read(link.pending)
    assert link.asked == [MOST_BYTES, MOST_BYTES // 2, *[MOST_BYTES // 4] * 32]
    assert [each["bytes"] for each in fields(caplog, "outbox read size halved")] == [MOST_BYTES // 2, MOST_BYTES // 4]
    link.takes = MOST_BYTES
    for _ in range(33):
        await size.read(link.pending)
    assert link.asked[-34:] == [MOST_BYTES // 4, *[MOST_BYTES // 2] * 32, MOST_BYTES]


async def test_a_single_row_is_read_at_last_and_one_that_fails_is_an_outage() -> None:
    link, size = Link(1), ReadSize("shop")
    await size.read(link.pending)
    assert link.asked[-3:] == [128 * KIB, 64 * KIB, 1]
    for _ in range(32):
        await size.read(link.pending)
    assert link.asked[-2:] == [64 * KIB, 1], "it grows by what is worth a try"
    link.takes = 0
    with pytest.raises(StoreUnavailable):
        await size.read(link.pending)
