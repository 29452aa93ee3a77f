"""RocketMQ's results of a batch (rows A.. of `docs/semantics.md`): what a handler does with offsets from 100, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, CONSUME_SUCCESS

Handler = Callable[[Batch[Any]], object]
"""What a handler does, without waiting for anything."""

Back = list[tuple[int, int]]
"""Offset and level of what comes back later."""

ERROR = ValueError("bad amount")


def handler(result: object = None, *, ack_index: int | None = None, delay_level: int = 0) -> Handler:
    """A handler that sets what it is told, then returns or raises `result`."""

    def handle(batch: Batch[Any]) -> object:
        if delay_level:
            batch.delay_level = delay_level
        if ack_index is not None:
            batch.ack_index = ack_index
        if isinstance(result, BaseException):
            raise result
        return result

    return handle


RESULTS: list[Any] = [
    pytest.param(5, handler(), [], id="A01"),
    pytest.param(5, handler(CONSUME_SUCCESS), [], id="A01-said"),
    pytest.param(5, handler(CONSUME_SUCCESS, ack_index=2), [(103, 0), (104, 0)], id="A02"),
    pytest.param(5, handler(ack_index=-1), [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0)], id="A04"),
    pytest.param(5, handler(ack_index=4), [], id="A05"),
    pytest.param(5, handler(ack_index=5), [], id="A06-5"),
    pytest.param(5, handler(ack_index=99), [], id="A06-99"),
    pytest.param(5, handler(ack_index=-2), [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0)], id="A07"),
    pytest.param(5, handler(ack_index=-3), [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0)], id="A08"),
    pytest.param(5, handler(CONSUME_LATER), [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0)], id="A09"),
    pytest.param(5, handler(CONSUME_LATER, ack_index=2), [(100, 0), (101, 0), (102, 0), (103, 0), (104, 0)], id="A09-prefix"),
    pytest.param(2, handler(CONSUME_LATER, ack_index=-2), [(100, 0), (101, 0)], id="A11"),
    pytest.param(3, handler(True), [(100, 0), (101, 0), (102, 0)], id="A12-True"),
    pytest.param(3, handler(0), [(100, 0), (101, 0), (102, 0)], id="A12-0"),
    pytest.param(3, handler("CONSUME_SUCCESS"), [(100, 0), (101, 0), (102, 0)], id="A12-text"),
    pytest.param(3, handler(False, ack_index=1), [(100, 0), (101, 0), (102, 0)], id="A13"),
    pytest.param(3, handler(ERROR, delay_level=5), [(100, 5), (101, 5), (102, 5)], id="A14"),
    pytest.param(3, handler(ERROR, ack_index=1), [(100, 0), (101, 0), (102, 0)], id="A15"),
    pytest.param(2, handler(CONSUME_LATER, delay_level=-1), [(100, -1), (101, -1)], id="A16"),
    pytest.param(2, lambda batch: batch.messages.append(batch[0]), [(100, 0), (101, 0)], id="A26-append"),
    pytest.param(2, lambda batch: batch.__setitem__(0, batch[1]), [(100, 0), (101, 0)], id="A26-set"),
    pytest.param(2, handler(MemoryError()), [(100, 0), (101, 0)], id="A30-MemoryError"),
    pytest.param(2, handler(RecursionError()), [(100, 0), (101, 0)], id="A30-RecursionError"),
    pytest.param(2, handler(BaseExceptionGroup("two", [ERROR])), [(100, 0), (101, 0)], id="A30-group"),
    pytest.param(2, handler(BaseException("bare")), [(100, 0), (101, 0)], id="A30-BaseException"),
    pytest.param(2, handler(asyncio.CancelledError()), [(100, 0), (101, 0)], id="A30-cancelled-by-itself"),
]
"""Messages, what the handler does, and what comes back; the rest is done, and the offset passes the whole batch."""
