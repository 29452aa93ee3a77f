"""`error_text`: whether logs have the text of what a handler raised. Events never have it, and a dead letter always has."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ackwise import App, Batch, ConsumeLater, Message, Reject
from ackwise.errors import ConfigurationError
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.runs.redelivery import Dropping
from ackwise.plugin.settings.config import Config
from ackwise.testing import TestApp

Fields = Callable[[str], dict[str, Any]]


@pytest.fixture
def fields(caplog: pytest.LogCaptureFixture) -> Fields:
    """The fields of the only line of an event."""
    caplog.set_level(logging.INFO, "ackwise")

    def of(event: str) -> dict[str, Any]:
        (found,) = [vars(record)["fields"] for record in caplog.records if vars(record).get("event") == event]
        return dict(found)

    return of


async def spine_that(make_spine: Any, error: Exception, error_text: str, **changes: Any) -> Any:
    async def fail(batch: Batch[bytes]) -> None:
        raise error

    spine = make_spine(fail, later=ConsumeLater(3))
    spine.worker = dataclasses.replace(spine.worker, error_text=error_text, **changes)
    spine.pipeline = Pipeline(spine.agent, spine.worker)
    await spine.run([spine.entry(100)])
    return spine


@pytest.mark.parametrize(("error_text", "text"), [("class", None), ("message", "'vat'")])
@pytest.mark.parametrize(
    ("error", "event", "changes"),
    [
        (KeyError("vat"), "messages come back later", {}),
        (Reject("'vat'"), "messages are dead letters", {}),
        (KeyError("vat"), "messages dropped in broadcasting", {"dropping": Dropping()}),
    ],
)
async def test_a_log_has_the_text_of_an_exception_only_where_somebody_decided_so(
    make_spine: Any, fields: Fields, error: Exception, event: str, changes: dict[str, Any], error_text: str, text: str | None
) -> None:
    spine = await spine_that(make_spine, error, error_text, **changes)
    assert fields(event).get("text") == text
    assert all("vat" not in repr(recorded) for recorded in (*spine.sink.buffer, *spine.sink.durable))


async def test_a_text_that_is_ours_is_told_once(make_spine: Any, fields: Fields) -> None:
    async def wrong(batch: Batch[bytes]) -> Any:
        return "done"

    spine = make_spine(wrong)
    spine.worker = dataclasses.replace(spine.worker, error_text="message")
    spine.pipeline = Pipeline(spine.agent, spine.worker)
    await spine.run([spine.entry(100)])
    assert "text" not in fields("messages come back later")


async def test_the_setting_of_the_app_reaches_its_worker_and_the_letter_has_the_text_in_any_case(fields: Fields) -> None:
    app = App("billing", brokers="nowhere:1", config=Config(), error_text="message")

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        raise Reject("order 7 has no vat")

    async with TestApp(app) as test:
        await test.deliver("orders", b"a")
        (letter,) = test.dead_letters
    assert fields("messages are dead letters")["text"] == "order 7 has no vat"
    assert dict(letter.headers)["ackwise-error-message"] == b"order 7 has no vat"


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="error_text is 'all'; it is one of 'class', 'message'"):
        App("billing", brokers="nowhere:1", config=Config(), error_text="all")  # type: ignore[arg-type]
