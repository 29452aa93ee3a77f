"""The rights of each role: on the page as in the code, and with the names of a group."""

from __future__ import annotations

from pathlib import Path

from ackwise.plugin.topics.topicexport import RESOURCES, RIGHTS, ROLES, Right, rights_of
from ackwise.plugin.topics.topicnames import TopicNames

PAGE = Path(__file__).parents[3] / "docs" / "topics.md"

#: What the page calls a resource of the group `billing`.
ON_THE_PAGE = {
    "sources": "source topics",
    "targets": "topics that [delayed sends](how-to/producing.md#later) go to",
    "retry": "`billing.retry`",
    "delay": "`billing.delay`",
    "dead letters": "`billing.dlq`",
    "state": "`billing.dlq.state`",
    "control": "`billing.control`",
    "group": "group `billing`",
    "relay's group": "group `billing.relay`",
}


def test_the_table_on_the_page_is_that_of_the_code() -> None:
    rows = [("resource", *ROLES), ("---",) * (1 + len(ROLES))]
    rows += [(ON_THE_PAGE[resource], *(", ".join(RIGHTS[role].get(resource, ())) for role in ROLES)) for resource in RESOURCES]
    table = "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows)
    assert table in PAGE.read_text("utf-8")


def test_every_right_is_about_a_resource_of_the_table() -> None:
    assert {resource for rights in RIGHTS.values() for resource in rights} <= {*RESOURCES} == {*ON_THE_PAGE}


def test_a_producer_writes_to_the_sources_and_to_the_delay_topic() -> None:
    assert rights_of("producer", TopicNames("billing"), ["refunds", "orders"]) == [
        Right("topic", "orders", ("Write",)),
        Right("topic", "refunds", ("Write",)),
        Right("topic", "billing.delay", ("Write",)),
    ]


def test_a_worker_that_relays_may_also_do_what_a_relay_may_and_nothing_is_said_twice() -> None:
    names = TopicNames("billing")
    found = {right.name: right.operations for right in rights_of("worker", names, ["orders"], relays=True)}
    for role in ("worker", "relay"):
        for right in rights_of(role, names, ["orders"]):
            included = {"Describe"} if {"Read", "Write"} & {*found[right.name]} else set[str]()
            assert {*right.operations} <= {*found[right.name]} | included
    assert found["billing.delay"] == ("Read", "Write", "DescribeConfigs")
    assert found["orders"] == ("Read", "DescribeConfigs"), "Read includes Describe"
    assert found["billing.relay"] == ("Read",)


def test_a_relay_writes_to_the_topics_of_delayed_sends_alone() -> None:
    found = rights_of("relay", TopicNames("billing"), ["orders", "refunds"], targets=["refunds", "invoices"])
    assert {right.name: right.operations for right in found if "billing" not in right.name} == {
        "orders": ("Describe", "DescribeConfigs"),
        "refunds": ("Write", "DescribeConfigs"),
        "invoices": ("Write",),
    }


def test_the_topics_of_names_of_your_own_are_named() -> None:
    template_free = TopicNames("billing", dead_letter="graveyard")
    assert Right("topic", "graveyard", ("Write", "DescribeConfigs")) in rights_of("worker", template_free, ["orders"])
