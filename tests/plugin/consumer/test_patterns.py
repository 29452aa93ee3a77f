"""Which topics patterns match, and which never."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ackwise import App, Broadcasting, Share, reliable
from ackwise.errors import ConfigurationError
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicpatterns import match_topics, parse_pattern, topics_about

NAMES = TopicNames("billing", dead_letter="orders.buried")


def an_agent(name: str, *topics: str, pattern: str | None = None) -> Agent:
    async def never(_: object) -> None: ...

    compiled = None if pattern is None else re.compile(pattern)
    return Agent(name, topics, "message", never, lambda value: value, pattern=compiled)


def test_a_pattern_matches_whole_names_that_no_agent_has() -> None:
    agents = [an_agent("bill", pattern="orders.(de|fr|rush)"), an_agent("rush", "orders.rush")]
    matched = match_topics(agents, NAMES, {"orders.de", "orders.de.old", "my.orders.fr", "orders.fr", "orders.rush"})
    assert matched.topics == ("orders.de", "orders.fr")


def test_topics_of_the_own_group_and_of_kafka_itself_never_match() -> None:
    theirs = {*NAMES.own, "__consumer_offsets"}
    assert {"billing.retry", "billing.control", "billing.dlq.state", "billing.delay", "orders.buried"} < theirs
    matched = match_topics([an_agent("bill", pattern=".*")], NAMES, {*theirs, "orders"})
    assert matched == (("orders",), {}, {})


def test_topics_of_other_groups_never_match_and_that_is_said_and_names_that_only_resemble_them_match() -> None:
    for kind in ("retry", "dlq", "dlq.state", "control", "delay"):
        topic = f"stock.{kind}"
        matched = match_topics([an_agent("bill", pattern=r".+")], NAMES, {topic})
        assert (matched.topics, matched.disputed) == ((), {}), topic
        assert "a group 'stock', which no pattern matches; if it is yours, name it in its agent" in matched.of_groups[topic]
        assert match_topics([an_agent("bill", topic, pattern=r".+")], NAMES, {topic}).of_groups == {}
    resembling = ("retry", "stock.delay.report", "stock.delays", "stock.retry.policy")
    assert match_topics([an_agent("bill", pattern=r".+")], NAMES, {*resembling}).topics == resembling


def test_a_topic_that_two_patterns_match_is_read_by_nobody_and_that_is_said() -> None:
    agents = [an_agent("bill", pattern=r"orders\..+"), an_agent("rush", pattern=r".+\.de")]
    matched = match_topics(agents, NAMES, {"orders.de", "orders.fr", "stock.de"})
    assert matched.topics == ("orders.fr", "stock.de")
    assert "matches the patterns of 'bill' and 'rush', and one app delivers it to one" in matched.disputed["orders.de"]


def test_what_is_no_pattern_is_refused_with_the_agent_that_has_it() -> None:
    for pattern, said in (
        ("orders[", "no regular expression"),
        (b"orders", "leave the b out"),
        ("", "empty"),
        (3, "no regular expression"),
    ):
        with pytest.raises(ConfigurationError, match=rf"pattern of agent 'bill' is.*{said}"):
            parse_pattern(pattern, agent="bill")  # type: ignore[arg-type]


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


def test_what_reads_topics_by_their_names_refuses_a_pattern() -> None:
    for policy in (Broadcasting(instance="one"), Share()):
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
