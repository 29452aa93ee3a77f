"""Names of a group's own topics by a template."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tables import each

from ackwise import App
from ackwise.errors import ConfigurationError
from ackwise.middleware.policies.retry import DelayLevels
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topictemplate import TopicTemplate

LEVELS = DelayLevels(("1s", "5m"))


def named(template: str, group: str = "billing") -> TopicNames:
    return TopicNames.of(HostSettings("nowhere:1", group, topic_names=template))


def test_group_and_kind_stand_where_the_template_says() -> None:
    names = named("acme.{kind}.{group}")
    assert (names.retry, names.dead_letter, names.delay) == ("acme.retry.billing", "acme.dlq.billing", "acme.delay.billing")
    assert (names.control, names.state) == ("acme.control.billing", "acme.dlq.state.billing")


def test_what_is_between_the_words_of_a_kind_can_be_said() -> None:
    names = named("{group}-{kind:-}")
    assert (names.retry, names.delay, names.state) == ("billing-retry", "billing-delay", "billing-dlq-state")


def test_without_a_template_names_are_as_ever() -> None:
    assert named("{group}.{kind}").own == TopicNames("billing").own


@each("template", ["{group}.{kind}", "acme.{kind}.{group}", "{group}-{kind:-}", "t_{kind:_}_{group}_x"])
def test_a_name_says_whose_topic_it_is_and_what_for(template: str) -> None:
    names = named(template)
    of = {topic: TopicTemplate(template).of(topic) for topic in names.own}
    assert {found.group for found in of.values() if found is not None} == {"billing"}
    kinds = {topic: found.kind for topic, found in of.items() if found is not None}
    assert kinds.keys() == names.own
    assert (kinds[names.retry], kinds[names.state], kinds[names.delay], kinds[names.control]) == ("retry", "state", "delay", "control")
    assert TopicTemplate(template).of("orders") is None


@each(
    ("template", "said"),
    [
        ("{group}", "it must contain {group} and {kind} once each"),
        ("{kind}", "it must contain {group} and {kind} once each"),
        ("acme", "it must contain {group} and {kind} once each"),
        ("{group}.{kind}.{kind}", "it must contain {group} and {kind} once each"),
        ("{group}.{group}.{kind}", "it must contain {group} and {kind} once each"),
        ("{team}.{group}.{kind}", "it may have letters, digits"),
        ("{group}/{kind}", "it may have letters, digits"),
        ("{group}.{kind:/}", "it must contain {group} and {kind} once each"),
        ("{group}{kind}", "between {group} and {kind}"),
        (3, "it must contain {group} and {kind} once each"),
    ],
)
def test_what_is_no_template_is_refused_at_once(template: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"topic_names is .*{said}"):
        App("billing", config=Config(), topic_names=template)


def test_names_that_are_too_long_are_refused_with_what_to_change() -> None:
    with pytest.raises(ConfigurationError, match="characters and Kafka allows 249; choose a shorter group name, or other topic_names"):
        named(f"{'x' * 240}.{{group}}.{{kind}}")


@each("topic", ["acme.retry.billing", "acme.delay.billing", "acme.dlq.billing", "acme_retry_billing", "acme.dlq.state.billing"])
def test_an_agent_does_not_read_a_topic_that_its_group_would_write_under_that_name(topic: str) -> None:
    app = App("billing", config=Config(), topic_names="acme.{kind}.{group}")

    @app.agent(topic)
    async def bill(value: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match="a topic that group 'billing' writes itself"):
        app.agents()


def test_with_other_names_the_default_ones_are_anybody_s() -> None:
    app = App("billing", config=Config(), topic_names="acme.{kind}.{group}")

    @app.agent("billing.retry")
    async def bill(value: bytes) -> None: ...

    assert app.group().sources == ("billing.retry",)


def test_explain_shows_the_names() -> None:
    app = App("billing", config=Config(), topic_names="acme.{kind}.{group}")

    @app.agent("orders")
    async def bill(value: bytes) -> None: ...

    explained = app.explain()
    assert {"acme.retry.billing", "acme.dlq.billing", "acme.control.billing"} < {use.topic for use in explained.topics}
    assert ("topic_names", "acme.{kind}.{group}", "code") in [(each.name, each.value, each.source) for each in explained.settings]


def test_a_group_whose_topics_would_be_called_like_those_of_another_is_refused() -> None:
    assert named("{group}.{kind}", "state.billing").dead_letter == "state.billing.dlq"
    with pytest.raises(
        ConfigurationError, match=r"'dlq\.state\.billing', .* would be that of a group 'billing' .* put \{group\} before \{kind\}"
    ):
        named("{kind}.{group}", "state.billing")
