"""A store that loses what it was told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ackwise.middleware.message.batch import Batch


async def test_claims_that_the_store_forgot_while_they_were_held_are_written_again_and_told_of(
    make_spine: Any, make_store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        spine.store.inner = make_store(spine.clock).inner  # as a fail-over to a replica that lags does

    spine = make_spine(handler, dedup={"key": lambda message: str(message.offset)})
    await spine.run(spine.entries(3))
    assert spine.watermark.commit == 103
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage().startswith("store lost held claims: handler=bill messages=3")
