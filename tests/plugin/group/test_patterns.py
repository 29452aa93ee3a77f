"""Which topics patterns match, and which never."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ackwise import App, Broadcasting, ConfigurationError, Share, reliable
from ackwise.middleware.agent import Agent
from ackwise.middleware.retry import DelayLevels
from ackwise.plugin.group.patterns import match_topics, parse_pattern, topics_about
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.settings.config import Config

NAMES = TopicNames("billing", DelayLevels(("1s", "5m")), dead_letter="orders.buried", delayed_sends=True)


def an_agent(name: str, *topics: str, pattern: str | None = None) -> Agent:
    async def never(_: object) -> None: ...

    compiled = None if pattern is None else re.compile(pattern)
    return Agent(name, topics, "message", never, lambda value: value, pattern=compiled)


def test_a_pattern_matches_whole_names() -> None:
    matched = match_topics([an_agent("bill", pattern="orders.(de|fr)")], NAMES, {"orders.de", "orders.de.old", "my.orders.fr", "orders.fr"})
    assert matched.topics == ("orders.de", "orders.fr")


def test_what_an_agent_names_is_no_match_of_another() -> None:
    agents = [an_agent("bill", pattern=r"orders\..+"), an_agent("rush", "orders.rush")]
    assert match_topics(agents, NAMES, {"orders.rush", "orders.de"}).topics == ("orders.de",)


def test_topics_of_the_own_group_and_of_kafka_itself_never_match() -> None:
    theirs = {*NAMES.own, "__consumer_offsets"}
    assert {"billing.retry", "billing.control", "billing.dlq.state", "billing.send.5m", "orders.buried"} < theirs
    matched = match_topics([an_agent("bill", pattern=".*")], NAMES, {*theirs, "orders"})
    assert matched == (("orders",), {}, {})


@pytest.mark.parametrize(
    "topic",
    [
        "stock.retry",
        "stock.dlq",
        "stock.dlq.state",
        "stock.cancel",
        "stock.control",
        "stock.delay.30s",
        "stock.delay.1.5s",
        "stock.send.2h",
    ],
)
def test_topics_of_other_groups_never_match_and_that_is_said(topic: str) -> None:
    matched = match_topics([an_agent("bill", pattern=r".+")], NAMES, {topic})
    assert (matched.topics, matched.disputed) == ((), {})
    assert "a group 'stock', which no pattern matches; if it is yours, name it in its agent" in matched.of_groups[topic]
    assert match_topics([an_agent("bill", topic, pattern=r".+")], NAMES, {topic}).of_groups == {}


@pytest.mark.parametrize("topic", ["stock.delay.report", "stock.retry.policy", "stock.delay", "retry"])
def test_names_that_only_resemble_those_of_groups_match(topic: str) -> None:
    assert match_topics([an_agent("bill", pattern=r".+")], NAMES, {topic}).topics == (topic,)


def test_a_topic_that_two_patterns_match_is_read_by_nobody_and_that_is_said() -> None:
    agents = [an_agent("bill", pattern=r"orders\..+"), an_agent("rush", pattern=r".+\.de")]
    matched = match_topics(agents, NAMES, {"orders.de", "orders.fr", "stock.de"})
    assert matched.topics == ("orders.fr", "stock.de")
    assert "matches the patterns of 'bill' and 'rush', and one app delivers it to one" in matched.disputed["orders.de"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("orders[", "no regular expression"), (b"orders", "leave the b out"), ("", "empty"), (3, "no regular expression")],
)
def test_what_is_no_pattern_is_refused_with_the_agent_that_has_it(pattern: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"pattern of agent 'bill' is.*{said}"):
        parse_pattern(pattern, agent="bill")


def test_what_a_command_is_about_may_be_a_topic_that_a_pattern_matches() -> None:
    agents = [an_agent("bill", "orders", pattern=r"orders\..+")]
    assert topics_about("orders.de/3", agents) == {"orders", "orders.de"}
    assert topics_about("stock/3", agents) == {"orders"}


def an_app(*things: Any) -> App:
    app = App("billing", config=Config())
    app.use(*things)
    return app


def test_one_pattern_has_one_agent() -> None:
    app = an_app()

    @app.agent(pattern=r"orders\..+")
    async def bill(value: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match=r"pattern 'orders.*' has two agents"):

        @app.agent(pattern=r"orders\..+")
        async def rush(value: bytes) -> None: ...


@pytest.mark.parametrize("policy", [Broadcasting(instance="one"), Share()], ids=["Broadcasting", "Share"])
def test_what_reads_topics_by_their_names_refuses_a_pattern(policy: Any) -> None:
    app = an_app(policy)

    @app.agent("orders", pattern=r"orders\..+")
    async def bill(value: bytes) -> None: ...

    (refusal,) = app.explain().refusals
    assert re.search(r"agent 'bill' has the pattern 'orders.*', and (Broadcasting|Share) reads topics by their names", refusal)


def test_a_pattern_among_topics_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match="give it as pattern="):
        an_app().agent(re.compile("orders"))  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"reliable\(\) reads topics by their names, and got the pattern 'orders'"):
        reliable(object(), re.compile("orders"))  # type: ignore[call-overload]


def test_explain_says_what_is_read_by_a_pattern() -> None:
    app = an_app()

    @app.agent("orders", pattern=r"orders\..+")
    async def bill(value: bytes) -> None: ...

    explained = app.explain()
    assert explained.chain[0].what == r"orders, what matches orders\..+"
    assert [use.topic for use in explained.topics[:2]] == ["orders", r"what matches orders\..+"]
    assert "each from its first record" in explained.topics[1].use
