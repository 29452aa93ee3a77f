"""Shops of Faust agents on a real Kafka, one for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faust.world import Shop
from tests.servers import RawKafka, new_name


@pytest.fixture
def new_shop(raw_kafka: RawKafka, tmp_path: Path) -> Callable[..., Shop]:
    """Makes shops with the two lines: `new_shop(styles, **fields)` of `Shop`."""

    def make(*styles: str, **fields: Any) -> Shop:
        group = new_name("shop")
        return Shop(raw_kafka, tmp_path / group, group, styles, **{"ackwise": True, **fields})

    return make
