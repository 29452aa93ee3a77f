"""What an event of Ackwise on Faust acknowledges, and when."""

from __future__ import annotations

from typing import Any, cast

import faust
import pytest

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.plugin.faust.faustmessages import StreamMessage, decoder


@pytest.fixture
async def event() -> faust.Event:
    app: Any = faust.App("shop")
    app.consumer = object()  # or an acknowledgement would make one
    delivery = Delivery("orders", 0, 7, 0, None, b'"tea"', (), Origin("orders", 0, 7, 0))
    message = cast(StreamMessage, decoder(app, app.topic("orders", value_type=str))(delivery))
    cast(Any, message.event.message).acknowledge = lambda: None
    return cast(faust.Event, message.event)


async def test_a_block_that_ends_acknowledges_its_event(event: faust.Event) -> None:
    async with event:
        assert not event.message.acked
    assert event.message.acked


async def test_a_block_that_an_exception_leaves_acknowledges_nothing_and_the_agent_may_do_so(event: faust.Event) -> None:
    with pytest.raises(KeyError):
        async with event:
            raise KeyError
    assert not event.message.acked
    event.ack()
    assert event.message.acked
