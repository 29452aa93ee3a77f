"""What is tested of the host on a real Kafka, on the Kafka in memory: whoever tests on it may trust what they see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.failures.conftest import new_world
from tests.failures.test_missing_topics import test_a_topic_that_was_away_is_read_again_soon_after_it_is_there
from tests.failures.test_rebalances import (
    test_a_rebalance_that_begins_while_a_member_drains_waits_for_the_drain,
    test_a_worker_that_stood_still_longer_than_its_session_and_lease_does_no_harm,
    test_K03_a_second_delivery_of_what_is_running_is_held_and_costs_no_attempt,
)
from tests.testing.broker import ThreadedKafka

pytestmark = pytest.mark.nightly

__all__ = [
    "new_world",
    "test_K03_a_second_delivery_of_what_is_running_is_held_and_costs_no_attempt",
    "test_a_rebalance_that_begins_while_a_member_drains_waits_for_the_drain",
    "test_a_topic_that_was_away_is_read_again_soon_after_it_is_there",
    "test_a_worker_that_stood_still_longer_than_its_session_and_lease_does_no_harm",
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ThreadedKafka]:
    broker = ThreadedKafka()
    yield broker
    broker.close()
