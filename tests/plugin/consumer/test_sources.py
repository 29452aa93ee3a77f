"""Topics come and go: what a member takes up, leaves out and lets go."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicpatterns import Sources


def sources(*topics: str, pattern: str = r"orders\..+") -> Sources:
    async def never(_: object) -> None: ...

    agent = Agent("bill", topics, "message", never, lambda value: value, pattern=re.compile(pattern))
    return Sources([agent], TopicNames("billing"))


async def fits(_: Collection[str]) -> None: ...


async def is_too_wide(topics: Collection[str]) -> None:
    if "orders.wide" in topics:
        raise ConfigurationError("'billing.retry' must have as many partitions as the largest source, 9; extend them")


async def test_what_matches_is_taken_up_beside_what_is_named() -> None:
    found = sources("stock")
    assert await found.take_up({"orders.de", "money"}, fits)
    assert found.topics == ["orders.de", "stock"]
    assert not await found.take_up({"orders.de", "money"}, fits)


async def test_the_topics_of_the_group_are_made_to_fit_before_a_topic_is_read() -> None:
    found, asked = sources("stock"), list[set[str]]()

    async def ensure(topics: Collection[str]) -> None:
        asked.append({*topics})
        assert "orders.fr" not in found.topics

    await found.take_up({"orders.de"}, ensure)
    await found.take_up({"orders.de", "orders.fr"}, ensure)
    assert asked == [{"stock", "orders.de"}, {"stock", "orders.de", "orders.fr"}]


async def test_a_topic_that_those_of_the_group_can_t_fit_is_left_out_until_they_do(caplog: pytest.LogCaptureFixture) -> None:
    found = sources()
    await found.take_up({"orders.de", "orders.wide"}, is_too_wide)
    await found.take_up({"orders.de", "orders.wide"}, is_too_wide)
    assert found.topics == ["orders.de"]
    assert list(found.left_out) == ["orders.wide"]
    assert caplog.text.count("topic of a pattern left out") == 1
    assert await found.take_up({"orders.de", "orders.wide"}, fits)
    assert (found.topics, found.left_out) == (["orders.de", "orders.wide"], {})


async def test_where_nothing_at_all_can_be_read_that_is_raised() -> None:
    with pytest.raises(ConfigurationError, match="as many partitions"):
        await sources().take_up({"orders.wide"}, is_too_wide)


async def test_a_topic_is_gone_once_two_looks_in_a_row_have_not_shown_it() -> None:
    found = sources()
    await found.take_up({"orders.de", "orders.fr"}, fits)
    assert not await found.take_up({"orders.fr"}, fits)
    assert not await found.take_up({"orders.de", "orders.fr"}, fits)
    assert not await found.take_up({"orders.fr"}, fits)
    assert await found.take_up({"orders.fr"}, fits)
    assert found.topics == ["orders.fr"]


async def test_what_a_group_that_never_committed_begins_with_is_not_read_from_its_first_record_and_what_comes_later_is() -> None:
    found = sources("stock")
    await found.take_up({"orders.de"}, fits)
    found.begin_new()
    await found.take_up({"orders.de", "orders.fr"}, fits)
    assert {topic: found.begins_whole(topic) for topic in found.topics} == {"orders.de": False, "orders.fr": True, "stock": False}


async def test_in_a_group_that_has_committed_whatever_a_pattern_finds_is_read_from_its_first_record() -> None:
    found = sources("stock")
    await found.take_up({"orders.de"}, fits)
    assert {topic: found.begins_whole(topic) for topic in found.topics} == {"orders.de": True, "stock": False}
