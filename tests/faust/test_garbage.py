"""A worker process of Faust is taken for the app's own; a process that starts the app beside something else is left as it is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import faust
import pytest

from ackwise.errors import ConfigurationError


@pytest.fixture
def pythons_own() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield 700, 10, 10
    gc.set_threshold(*before)


@pytest.mark.parametrize(("in_worker", "young"), [(True, 20_000), (False, 700)], ids=["faust-worker", "a-process-of-the-users"])
async def test_a_worker_process_searches_for_garbage_rarely(pythons_own: tuple[int, int, int], in_worker: bool, young: int) -> None:
    app: Any = faust.App("shop", processing_guarantee="exactly_once", env={})
    app.use()
    app.in_worker = in_worker
    with pytest.raises(ConfigurationError, match="exactly_once"):
        await app.ackwise.open(None)
    assert gc.get_threshold() == (young, *pythons_own[1:])
