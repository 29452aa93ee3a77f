"""Workers whose values come with a Schema Registry: nothing is lost while it is unavailable, and only bad bytes are dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from tests.plugin.schemas.registryserver import RegistryServer, failed
from tests.plugin.schemas.test_avro import ORDER, written
from tests.waiting import until

from ackwise import App, Batch, DeadLetter, Dedup
from ackwise.plugin.settings.config import Config
from ackwise.schemas import Avro
from ackwise.testing import MemoryKafka


class Order(pydantic.BaseModel):
    """An order as its handler takes it."""

    id: str
    amount: int


def order(number: int, schema_id: int = 7) -> bytes:
    return written(schema_id, ORDER, {"id": "a", "amount": number})


@pytest.mark.parametrize("is_away", [lambda server: setattr(server, "fault", lambda: failed(503, 503, "away")), lambda server: None])
async def test_messages_are_held_until_the_registry_gives_their_schema(server: RegistryServer, is_away: Callable[[Any], None]) -> None:
    got: list[tuple[int, int]] = []
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        app = App("billing", brokers=kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)
        app.use(Dedup("memory://"), DeadLetter())

        @app.agent("orders", decode=Avro(server.url, Order))
        async def bill(batch: Batch[Order]) -> None:
            got.extend((message.value.amount, message.reconsume_times) for message in batch)

        def committed() -> int:
            found = kafka.committed("billing").get(("orders", 0))
            return 0 if found is None else found.offset

        server.register(7, ORDER)
        kafka.produce("orders", order(0), order(1))
        async with app.running():
            await until(lambda: committed() == 2)
            is_away(server)  # or it has lost, or never had, the schema of what comes now
            asked = len(server.asked)
            kafka.produce("orders", order(2), order(3, 8), order(4), b"bad")
            await until(lambda: len(server.asked) > asked + 2)
            assert (committed(), got, kafka.records("billing.dlq")) == (3, [(0, 0), (1, 0), (2, 0)], [])
            server.fault = None
            server.register(8, ORDER)
            await until(lambda: committed() == 6)
        assert sorted(got) == [(number, 0) for number in range(5)]
        assert [letter.value for letter in kafka.records("billing.dlq")] == [b"bad"]
