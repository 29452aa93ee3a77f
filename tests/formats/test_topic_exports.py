"""What `ackwise topics export` prints, for each format."""

from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from tests.formats.golden import check
from tests.tables import each

from ackwise.plugin.topics.topicexport import FORMATS, ROLES, Export, User, rights_of
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicplan import Topic, made_topics

NAMES = TopicNames("billing")
LIKE = Topic(12, 3, max_message_bytes=1048588, retention_ms=604800000, min_insync_replicas=2)


def exported() -> Export:
    topics = made_topics(NAMES, ["orders"], {"orders": LIKE}, longest_delay=7200.0, rungs=14)
    return Export(
        topics,
        [User(role, f"User:billing-{role}", rights_of(role, NAMES, ["orders"], targets=["orders"])) for role in ROLES],
        "kafka-1:9092",
    )


@each("form", FORMATS)
def test_topics_and_rights_in_every_format(form: str) -> None:
    check(f"topics-{form}", FORMATS[form](exported()))


def test_what_strimzi_reads_is_yaml_with_names_that_kubernetes_takes() -> None:
    names = TopicNames("Billing_EU")
    made = made_topics(names, ["orders"], {"orders": LIKE}, longest_delay=7200.0, rungs=14)
    export = Export(made, [User("worker", "User:Billing_EU-worker", rights_of("worker", names, ["orders"]))], "kafka-1:9092")
    found: list[Any] = [*yaml.safe_load_all("\n".join(FORMATS["strimzi"](export)))]
    assert [(each["kind"], each["metadata"]["name"]) for each in found[:2]] == [
        ("KafkaTopic", "billing-eu.retry"),
        ("KafkaTopic", "billing-eu.dlq"),
    ]
    assert found[0]["spec"]["topicName"] == "Billing_EU.retry"
    assert found[0]["spec"]["config"] == made[0].config | {
        name: int(value) for name, value in made[0].config.items() if value.lstrip("-").isdigit()
    }
    assert found[-1]["metadata"]["name"] == "billing-eu-worker"
    acls = [(acl["resource"]["name"], *acl["operations"]) for acl in found[-1]["spec"]["authorization"]["acls"]]
    assert acls == [(right.name, *right.operations) for right in export.users[0].rights]


@pytest.mark.parametrize("group", ["7-eleven", "-x"])
def test_a_name_of_terraform_begins_with_a_letter_or_an_underscore(group: str) -> None:
    names = TopicNames(group)
    made = made_topics(names, ["orders"], {"orders": LIKE}, longest_delay=7200.0, rungs=14)
    assert f'resource "kafka_topic" "_{group}_retry" {{' in [*FORMATS["terraform"](Export(made, [], "kafka-1:9092"))]
