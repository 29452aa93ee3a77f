"""What waits in place in a whole worker, over a Kafka in memory: seen from inside and from outside, released, and buried."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until
from typer.testing import CliRunner

from ackwise import App, Message, RetryInPlace, Transactional
from ackwise.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import is_worker
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.topicadmin import connected
from ackwise.testing import MemoryKafka, Record

WORKER = """
from ackwise import App, RetryInPlace

app = App("billing", brokers={brokers!r})

@app.agent("orders", order="partition", in_place=RetryInPlace(3))
async def bill(value: bytes) -> None: ...
"""


class Shop:
    """A worker whose handler fails on what starts with `bad`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.ran: list[str] = []
        self.stop = asyncio.Event()
        self.bad = "bad"
        self.app = self.new_app()

    def new_app(self) -> App:
        self.app = App("billing", brokers=self.kafka.bootstrap, config=Config(), commit_interval=0.05, session_timeout=6.0)

        @self.app.agent("orders", order="partition", in_place=RetryInPlace(3, delay=30))
        async def bill(message: Message[bytes]) -> None:
            self.ran.append(message.value.decode())
            if self.bad and message.value.startswith(self.bad.encode()):
                raise RuntimeError

        return self.app

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = asyncio.create_task(self.app.serve(stop))
        try:
            yield
        finally:
            stop.set()
            await running

    @property
    def commands(self) -> list[Record]:
        """What is in the control topic beside what workers say of themselves."""
        return [record for record in self.kafka.records("billing.control") if not is_worker(record.key)]

    @property
    def letters(self) -> list[Record]:
        return self.kafka.records("billing.dlq")

    def waits_in_commit(self) -> bool:
        committed = self.kafka.committed("billing").get(("orders", 0))
        return committed is not None and '"i":' in committed.metadata


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic("orders")
        yield Shop(kafka)


@pytest.fixture
def command(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    (tmp_path / "inplaceworker.py").write_text(WORKER.format(brokers=shop.kafka.bootstrap))
    monkeypatch.chdir(tmp_path)

    async def ackwise(*arguments: str, code: int = 0) -> str:
        found = await asyncio.to_thread(CliRunner().invoke, new_app(), ["inplace", arguments[0], "inplaceworker:app", *arguments[1:]])
        assert found.exit_code == code, found.output
        return " ".join(found.output.split())

    yield ackwise
    sys.modules.pop("inplaceworker", None)


@pytest.mark.slow  # waits for a worker and three commands
async def test_what_waits_is_seen_from_inside_and_from_outside(shop: Shop, command: Any) -> None:
    assert shop.app.waiting() == []
    async with shop.serving():
        shop.kafka.produce("orders", b"bad", b"b", b"c", key=b"ann")
        await until(lambda: shop.app.waiting() and shop.waits_in_commit())
        (inside,) = shop.app.waiting()
        assert (str(inside), inside.key, inside.attempts, inside.depth, inside.error) == ("orders/0/0", "ann", 1, 2, "RuntimeError")
        (outside,) = json.loads(await command("list", "--json"))["waiting"]
        assert {name: outside[name] for name in ("message", "key", "attempts", "depth", "is_buried")} == {
            "message": "orders/0/0", "key": "ann", "attempts": 1, "depth": 2, "is_buried": False,
        }  # fmt: skip
        assert 0 < outside["due_in"] <= 30
        assert 0 <= outside["age"] < 30
        shown = await command("list")
        assert "as of the last commit of each partition" in shown
        assert "orders/0/0" in shown
    assert shop.app.waiting() == []
    assert "orders/0/0" in await command("list")  # no worker runs


async def test_a_message_is_released_from_code_and_by_command(shop: Shop, command: Any) -> None:
    async with shop.serving():
        shop.kafka.produce("orders", b"bad")
        await until(shop.app.waiting)
        assert await shop.app.retry("orders/0/0") == "accepted"
        await until(lambda: [each.attempts for each in shop.app.waiting()] == [2])
        shop.bad = ""
        await command("retry", "orders/0/0")
        await until(lambda: len(shop.ran) == 3)
        assert await shop.app.retry("orders/0/0") == "unknown"
    assert shop.letters == []
    assert shop.kafka.committed("billing")["orders", 0].offset == 1


async def test_a_message_is_buried_by_command_and_what_is_behind_it_goes_on(shop: Shop, command: Any) -> None:
    async with shop.serving():
        shop.kafka.produce("orders", b"bad", b"b")
        await until(lambda: shop.app.waiting() and shop.waits_in_commit())
        assert "will be buried" in await command("bury", "orders/0/0")
        await until(lambda: shop.ran == ["bad", "b"])
    (letter,) = shop.letters
    assert dict(letter.headers)["ackwise-reason"] == b"buried"
    assert shop.kafka.committed("billing")["orders", 0].offset == 2
    assert "nothing of group billing waits in place" in await command("list")


async def test_a_message_is_buried_from_code_and_the_command_is_in_the_control_topic_first(shop: Shop) -> None:
    async with shop.serving():
        shop.kafka.produce("orders", b"bad", b"b")
        assert await shop.app.bury("orders/0/0") == "unknown"
        await until(shop.app.waiting)
        assert await shop.app.bury("orders/0/0") == "accepted"
        assert [record.key for record in shop.commands] == [b"message/orders/0/0"]
        await until(lambda: shop.ran == ["bad", "b"])
        assert await shop.app.bury("orders/0/0") == "unknown"
    assert len(shop.letters) == 1


@pytest.mark.slow  # waits for one worker after another, and for commands between them
async def test_what_was_to_be_buried_when_no_worker_ran_is_buried_by_the_next_one(shop: Shop, command: Any) -> None:
    async with shop.serving():
        shop.kafka.produce("orders", b"bad", b"b")
        await until(lambda: shop.app.waiting() and shop.waits_in_commit())
    await command("bury", "orders/0/0")
    assert "to be buried" in await command("list")
    assert shop.letters == []
    shop.new_app()
    async with shop.serving():
        await until(lambda: shop.ran == ["bad", "b"])
    assert len(shop.letters) == 1


async def test_what_does_not_wait_is_not_buried(shop: Shop, command: Any) -> None:
    shop.bad = ""
    async with shop.serving():
        shop.kafka.produce("orders", b"a")
        await until(lambda: shop.ran == ["a"])
        assert "did not wait in place" in await command("bury", "orders/0/0", code=2)
        assert "which this app does not read" in await command("bury", "order/0/0", code=2)
        assert "names no message" in await command("retry", "orders/0", code=2)
        with pytest.raises(ConfigurationError, match="names no message"):
            await shop.app.bury("orders")
        with pytest.raises(ConfigurationError, match="did you mean 'orders'"):
            await shop.app.retry("order/0/0")
    assert shop.commands == []


async def test_the_next_command_takes_away_those_that_the_group_has_passed(shop: Shop, command: Any) -> None:
    async with shop.serving():
        shop.kafka.produce("orders", b"bad", b"bad")
        for offset in (0, 1):
            await until(lambda: shop.waits_in_commit() and [each.offset for each in shop.app.waiting()] == [offset])  # noqa: B023
            await until(lambda: shop.kafka.committed("billing")["orders", 0].offset == offset)  # noqa: B023
            await until(shop.waits_in_commit)
            await command("bury", f"orders/0/{offset}")
            await until(lambda: len(shop.letters) == offset + 1)  # noqa: B023
    said = [(record.key, record.value is None) for record in shop.commands]
    assert said == [(b"message/orders/0/0", False), (b"message/orders/0/1", False), (b"message/orders/0/0", True)]


@pytest.mark.slow  # the client gives a topic that is missing ten seconds
async def test_without_a_control_topic_nothing_is_buried_and_the_error_says_why(shop: Shop, command: Any) -> None:
    async with shop.serving():
        shop.kafka.produce("orders", b"bad")
        await until(lambda: shop.app.waiting() and shop.waits_in_commit())
        async with connected(shop.app.settings) as admin:
            await admin.delete_topics(["billing.control"])
        with pytest.raises(ConfigurationError, match="there is no topic 'billing"):
            await shop.app.bury("orders/0/0")
        assert "there is no topic" in await command("bury", "orders/0/0", code=2)
        assert [each.is_buried for each in shop.app.waiting()] == [False]
    assert shop.letters == []


async def test_in_a_transaction_a_burial_is_marked_as_dead_and_writes_nothing(shop: Shop, tmp_path: Path) -> None:
    shop.app.use(Transactional(f"sqlite:///{tmp_path / 'inbox.db'}"))
    async with shop.serving():
        shop.kafka.produce("orders", b"bad", b"b")
        await until(shop.app.waiting)
        ran = [*shop.ran]  # with both in one transaction, which was rolled back, and alone
        assert await shop.app.bury("orders/0/0") == "accepted"
        await until(lambda: "b" in shop.ran)
    assert shop.ran == [*ran, "b"]
    (letter,) = shop.letters
    assert dict(letter.headers)["ackwise-reason"] == b"buried"
    assert shop.kafka.committed("billing")["orders", 0].offset == 2
