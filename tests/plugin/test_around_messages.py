"""Middleware of batches around handlers of single messages: what it sees, what it may rule, and what its errors are about."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from tests.tables import each

from ackwise import CONSUME_LATER, CONSUME_SUCCESS, App, Batch, CallNext, ConsumeLater, Message, RetryInPlace, Transactional
from ackwise.errors import InvalidRuling
from ackwise.testing import TestApp

VALUES = [b"0", b"1", b"2", b"3"]


def app_of(*used: Any, **options: Any) -> tuple[App, list[bytes]]:
    """An app with a handler that fails for values above `1`, and what it has handled."""
    app, handled = App("billing", brokers="127.0.0.1:1"), list[bytes]()
    app.use(*used)

    async def bill(message: Message[bytes]) -> None:
        handled.append(message.value)
        if message.value > b"1" and message.attempt == 1:
            raise ValueError(message.value)

    app.agent("orders", **options)(bill)
    return app, handled


async def kinds(app: App, values: list[bytes] = VALUES) -> list[str]:
    async with TestApp(app) as worker:
        return [fate.kind for fate in await worker.deliver_batch("orders", values)]


@each("options", [{}, {"concurrency": 3}])
async def test_it_sees_what_became_of_each_message(options: dict[str, Any]) -> None:
    seen: list[Any] = []

    async def timed(batch: Batch[Any], call_next: CallNext) -> object:
        seen.append([message.value for message in batch])
        said = await call_next(batch)
        seen.extend([said, [type(ruling).__name__ for _, ruling in sorted(batch.rulings.items())]])
        return said

    app, handled = app_of(timed, **options)
    assert await kinds(app) == ["done", "done", "later", "later"]
    assert (seen[0], seen[1], seen[2]) == (VALUES, CONSUME_LATER, ["Done", "Done", "Delayed", "Delayed"])
    assert sorted(handled) == VALUES


async def test_it_rules_on_what_failed_and_on_nothing_that_succeeded() -> None:
    async def ruling(batch: Batch[Any], call_next: CallNext) -> None:
        await call_next(batch)
        batch.later(batch[0])
        batch.dead(batch[1], "never")
        batch.done(batch[2])
        batch.dead(batch[3], "why")

    app, _ = app_of(ruling)
    assert await kinds(app) == ["done", "done", "done", "dead"]


async def test_what_it_rules_on_before_is_not_handled() -> None:
    async def ruling(batch: Batch[Any], call_next: CallNext) -> object:
        batch.dead(batch[0], "never")
        batch.done(batch[3])
        return await call_next(batch)

    app, handled = app_of(ruling)
    assert await kinds(app) == ["dead", "done", "later", "done"]
    assert handled == [b"1", b"2"]


@each("when", ["before", "after"])
async def test_its_delay_level_is_that_of_what_failed(when: str) -> None:
    async def ruling(batch: Batch[Any], call_next: CallNext) -> object:
        if when == "before":
            batch.delay_level = 5
        said = await call_next(batch)
        batch.delay_level = 5
        return said

    app, _ = app_of(ruling)
    async with TestApp(app) as worker:
        fates = await worker.deliver_batch("orders", VALUES)
        assert [fate.kind for fate in fates] == ["done", "done", "later", "later"]
        assert fates[2].due is not None
        assert round(fates[2].due - worker.clock()) == 60


async def test_an_ack_index_is_about_what_the_handler_has_not_had() -> None:
    async def stopping(batch: Batch[Any], call_next: CallNext) -> object:
        for index, message in enumerate(batch):
            if await call_next(Batch([message])) is CONSUME_LATER:
                batch.ack_index = index - 1
                break
        return CONSUME_SUCCESS

    app, handled = app_of(stopping)
    assert await kinds(app) == ["done", "done", "later", "later"]
    assert handled == [b"0", b"1", b"2"]


async def test_an_ack_index_takes_nothing_back() -> None:
    async def ruling(batch: Batch[Any], call_next: CallNext) -> object:
        batch.ack_index = -1
        said = await call_next(batch)
        batch.ack_index = 0
        return said

    app, _ = app_of(ruling)
    assert await kinds(app) == ["done", "done", "later", "later"]


async def test_what_it_raises_is_about_messages_without_a_result_of_their_own() -> None:
    async def raising(batch: Batch[Any], call_next: CallNext) -> object:
        await call_next(Batch(batch[1:3]))
        raise KeyError("mine")

    app, _ = app_of(raising, ConsumeLater(16, no_retry=(ValueError,)))
    assert await kinds(app) == ["later", "done", "dead", "later"]


async def test_what_it_raises_in_the_end_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def raising(batch: Batch[Any], call_next: CallNext) -> object:
        await call_next(batch)
        raise KeyError("mine")

    app, _ = app_of(raising, ConsumeLater(16, no_retry=(KeyError,)))
    assert await kinds(app) == ["done", "done", "later", "later"]
    assert "middleware failed after its messages were handled" in caplog.text


@each(("returned", "fates"), [(None, "later"), (CONSUME_SUCCESS, "done"), (CONSUME_LATER, "later"), (42, "later")])
async def test_without_call_next_it_decides_and_nothing_is_no_success(returned: Any, fates: str) -> None:
    async def leaving_out(batch: Batch[Any], call_next: CallNext) -> object:
        return returned

    app, handled = app_of(leaving_out)
    assert await kinds(app) == [fates] * 4
    assert handled == []


async def test_a_part_that_is_not_given_to_call_next_is_not_done_unless_it_says_so() -> None:
    async def forgetting(batch: Batch[Any], call_next: CallNext) -> None:
        await call_next(Batch(batch[:1]))

    app, handled = app_of(forgetting)
    assert await kinds(app) == ["done", "later", "later", "later"]
    assert handled == [b"0"]


async def test_it_may_call_the_handler_again_for_what_failed() -> None:
    async def again(batch: Batch[Any], call_next: CallNext) -> object:
        await call_next(batch)
        return await call_next(batch)

    app, handled = App("billing", brokers="127.0.0.1:1"), list[bytes]()
    app.use(again)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        handled.append(message.value)
        if handled.count(message.value) == 1 and message.value > b"1":
            raise ValueError

    assert await kinds(app) == ["done"] * 4
    assert handled == [*VALUES, b"2", b"3"]


async def test_what_it_does_not_wait_for_takes_its_error() -> None:
    ended: list[bytes] = []

    async def hurried(batch: Batch[Any], call_next: CallNext) -> object:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await call_next(batch)
        assert ended == [b"1"], "the handler has ended by then"
        raise KeyError("mine")

    app = App("billing", brokers="127.0.0.1:1")
    app.use(hurried, ConsumeLater(16, levels="5s"))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        if message.value == b"1":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(message.value)

    assert await kinds(app) == ["done", "later", "later", "later"]


async def test_handlers_see_its_context() -> None:
    session: ContextVar[str] = ContextVar("session", default="")
    seen: list[str] = []

    async def opening(batch: Batch[Any], call_next: CallNext) -> object:
        session.set("open")
        return await call_next(batch)

    app = App("billing", brokers="127.0.0.1:1")
    app.use(opening)

    @app.agent("orders", concurrency=2)
    async def bill(message: Message[bytes]) -> None:
        seen.append(session.get())
        session.set("changed")

    assert await kinds(app) == ["done"] * 4
    assert seen == ["open"] * 4


async def test_call_next_beside_another_one_or_after_the_end_is_refused() -> None:
    later: list[Any] = []

    async def greedy(batch: Batch[Any], call_next: CallNext) -> object:
        later.append((batch, call_next))
        first, second = await asyncio.gather(call_next(batch), call_next(batch), return_exceptions=True)
        assert isinstance(second, InvalidRuling)
        return first

    app, _ = app_of(greedy)
    assert await kinds(app) == ["done", "done", "later", "later"]
    batch, call_next = later[0]
    with pytest.raises(InvalidRuling, match="after its middleware had ended"):
        await call_next(batch)


async def test_in_a_transaction_what_it_raises_rolls_back_and_what_succeeded_after_that_is_written_once(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def checking(batch: Batch[Any], call_next: CallNext) -> object:
        sizes.append(len(batch))
        if batch.connection is None or any(message.value == b"2" for message in batch):
            raise KeyError
        return await call_next(batch)

    app = App("billing", brokers="127.0.0.1:1")
    app.use(checking, Transactional(f"sqlite:///{tmp_path}/shop.db"))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        message.connection.execute("CREATE TABLE IF NOT EXISTS booked (value BLOB)")
        message.connection.execute("INSERT INTO booked VALUES (?)", (message.value,))
        if message.value == b"3":
            raise ValueError

    assert await kinds(app) == ["done", "done", "later", "later"]
    assert sizes == [4, 2, 2, 1, 1]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert sorted(connection.execute("SELECT value FROM booked")) == [(b"0",), (b"1",)]


async def test_by_partition_nothing_starts_behind_what_failed() -> None:
    async def passing(batch: Batch[Any], call_next: CallNext) -> object:
        return await call_next(batch)

    app, handled = app_of(passing, order="partition", in_place=RetryInPlace(3, delay=0.01))
    assert await kinds(app) == ["done"] * 4
    assert handled == [b"0", b"1", b"2", b"2", b"3", b"3"]


async def test_publishing_in_it_names_a_message_that_the_handler_has_not_had() -> None:
    errors: list[str] = []
    app = App("billing", brokers="127.0.0.1:1")

    async def publishing(batch: Batch[Any], call_next: CallNext) -> object:
        try:
            await app.publish("seen", b"none")
        except InvalidRuling as error:
            errors.append(str(error))
        await app.publish("seen", b"before 0", source=batch[0])
        await app.publish("seen", b"before 1", source=batch[1])
        said = await call_next(batch)
        try:
            await app.publish("seen", b"after", source=batch[0])
        except InvalidRuling as error:
            errors.append(str(error))
        return said

    app.use(publishing)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        await app.publish("seen", b"by the handler")
        if message.value == b"1":
            raise ValueError

    async with TestApp(app) as worker:
        worker.kafka.create_topic("seen", 1)
        fates = await worker.deliver_batch("orders", [b"0", b"1"])
        assert [fate.kind for fate in fates] == ["done", "later"]
        assert [each.value for each in worker.kafka.records("seen")] == [b"before 0", b"by the handler"]
    assert "for which message" in errors[0]
    assert "publish before" in errors[1]
