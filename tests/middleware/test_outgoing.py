"""What `Outgoing` refuses: what no broker would take, and what no outbox could hold."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.outgoing import Outgoing


@each(
    ("given", "sentence"),
    [
        ({"topic": "a b"}, "topic is 'a b'"),
        ({"topic": ".."}, r"topic is '\.\.'"),
        ({"value": "text"}, "the value of a message to 'orders' is of type str"),
        ({"key": 7}, "the key of a message to 'orders' is of type int"),
        ({"partition": -1}, "partition of a message to 'orders' is -1"),
        ({"partition": True}, "partition of a message to 'orders' is True"),
        ({"partition": 2**31}, "partition of a message to 'orders' is 2147483648; give a number from 0, or leave it out"),
        ({"message_id": ""}, "message_id of a message to 'orders' is ''"),
        ({"message_id": "a\0"}, "message_id of a message to 'orders' is 'a"),
        ({"message_id": "a" * 201}, "has more than 200 bytes"),
        ({"message_id": "\ud800"}, r"message_id of a message to 'orders' is no valid text \('\\ud800'\); give another one"),
        ({"headers": (("name", "text"),)}, "a header of a message to 'orders' is no pair"),
    ],
)
def test_what_can_not_be_sent_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Outgoing(**{"topic": "orders", "value": b"v", **given})


def test_the_highest_partition_that_kafka_can_name_is_taken() -> None:
    assert Outgoing("orders", b"v", partition=2**31 - 1).partition == 2147483647
