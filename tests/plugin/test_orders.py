"""Orders, concurrency and consume timeout as settings of an agent: what is refused, and what `explain` shows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tables import each

from ackwise import App, Message, RetryInPlace, Transactional
from ackwise.errors import ConfigurationError
from ackwise.plugin.settings.config import Config, Given


async def bill(message: Message[bytes]) -> None:
    """A handler."""


def blocking(message: Message[bytes]) -> None:
    """A plain one."""


def app(*policies: Any, entries: dict[str, Any] | None = None, handler: Any = bill, **options: Any) -> App:
    given: dict[tuple[str, ...], Given] = {
        ("agents", "bill", name): Given(value, "ackwise.toml") for name, value in (entries or {}).items()
    }
    made = App("billing", config=Config(given))
    made.use(*policies)
    made.agent("orders", name="bill", **options)(handler)
    return made


@each(
    ("options", "sentence"),
    [
        ({"order": "keys"}, "order of agent 'bill' is 'keys'; it is 'key', 'partition', or None for no order"),
        ({"order": "none"}, "order of agent 'bill' is 'none'; it is 'key', 'partition', or None for no order"),
        ({"order": "key"}, "say how often a message may run again while others wait behind it, such as in_place=RetryInPlace\\(3\\)"),
        ({"order": "partition", "in_place": 3}, "has order='partition' and in_place=3; say how often"),
        ({"in_place": RetryInPlace(3)}, "has in_place and no order; give it order='key' or 'partition', or leave in_place out"),
        ({"order": "partition", "in_place": RetryInPlace(3), "order_by": str}, "has order_by and order='partition'"),
        ({"order": "key", "in_place": RetryInPlace(3), "order_by": "id"}, "order_by of agent 'bill' is 'id'; give a function"),
        ({"order": "partition", "in_place": RetryInPlace(3), "consume_timeout": 5}, "order='partition' and consume_timeout=5"),
        ({"concurrency": 0}, "concurrency of agent 'bill' is 0; it must be a whole number, 1 or more"),
        ({"concurrency": True}, "concurrency of agent 'bill' is True"),
        ({"consume_timeout": "soon"}, "consume_timeout is 'soon', which is not a duration"),
        ({"consume_timeout": -1}, "consume_timeout is -1"),
    ],
)
def test_a_setting_that_can_not_work_is_refused_where_it_is_set(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        app(**options)


@each(
    ("arguments", "sentence"),
    [
        ((-1,), "max_reconsume_times of RetryInPlace is -1"),
        ((True,), "max_reconsume_times of RetryInPlace is True"),
        ((3, "1m"), "delay of RetryInPlace is '1m'; it must be 10ms to 30s"),
        ((3, 0), "delay of RetryInPlace is 0"),
        ((3, 1, "wait"), "on_dead of RetryInPlace is 'wait'; it is one of 'continue', 'block'"),
    ],
)
def test_a_retry_in_place_that_can_not_work_is_refused(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        RetryInPlace(*arguments)


def test_an_order_is_refused_beside_an_offset_in_a_database() -> None:
    made = app(Transactional("sqlite:///shop.db", mode="offsets"), order="key", in_place=RetryInPlace(3))
    assert any("has order='key', and Transactional(mode='offsets') passes one offset for all" in said for said in made.explain().refusals)


def test_a_plain_function_is_refused_in_a_transaction() -> None:
    made = app(Transactional("sqlite:///shop.db"), handler=blocking)
    assert any(
        "is a plain `def`, and the connection of Transactional belongs to the event loop" in said for said in made.explain().refusals
    )


def test_a_file_sets_concurrency_and_consume_timeout() -> None:
    (agent,) = app(entries={"concurrency": 7, "consume_timeout": 60.0}).agents()
    assert (agent.concurrency, agent.consume_timeout) == (7, 60.0)


def test_a_file_can_not_give_a_timeout_to_a_partition_in_order() -> None:
    with pytest.raises(ConfigurationError, match="order='partition' and consume_timeout=60"):
        app(entries={"consume_timeout": 60.0}, order="partition", in_place=RetryInPlace(3)).agents()


def test_T05_the_consume_timeout_is_fifteen_minutes_and_none_for_a_partition_in_order() -> None:
    assert app().agents()[0].consume_timeout == 900.0
    assert app(order="partition", in_place=RetryInPlace(3)).agents()[0].consume_timeout == 0.0


@each("order", ["key", "partition"])
def test_explain_shows_the_order_its_retry_and_what_a_failure_leads_to(order: Any) -> None:
    shown = app(order=order, in_place=RetryInPlace(2, delay="500ms")).explain()
    settings = {setting.name: setting.value for setting in shown.settings}
    assert settings["agents.bill.order"] == order
    assert settings["agents.bill.in_place"] == "RetryInPlace(2, delay='500ms', on_dead='continue')"
    (path,) = [path for path in shown.failures if path.when == "bill raises"]
    assert (path.delays, path.attempts, path.ends) == ((0.5, 0.5), 3, "billing.dlq, max-reconsume-times")
    assert not any("CONSUME_LATER" in path.when for path in shown.failures)
