"""Each way of consuming under each kind of fault, on a real Kafka: nothing lost, no order broken, no promise of a commit broken.

`python -m tests.failures.modes --seeds 20` plays more of them, and prints a table.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.failures.modes.playing import Outcome, play
from tests.failures.modes.trial import FAULTS, MODES

from ackwise.plugin.local.broker import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1500)]

#: Trials at a time, each with two workers: most of a trial is waiting.
AT_ONCE = 6

SEED = 1


@pytest.fixture(scope="module")
def played(own_kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """A trial for each mode and kind of fault, on a broker that no other test uses, since it goes away."""
    faults = [fault for fault in FAULTS if fault != "nothing"]
    return asyncio.run(play(own_kafka, tmp_path_factory.mktemp("modes"), [*MODES], faults, [SEED], at_once=AT_ONCE))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "nothing"])
def test_in_each_mode_no_fault_loses_a_message_or_breaks_an_order_or_a_promise(played: list[Outcome], mode: str, fault: str) -> None:
    (outcome,) = [each for each in played if (each.mode, each.fault) == (mode, fault)]
    assert outcome.wrong == []


def test_every_trial_had_messages_to_judge(played: list[Outcome]) -> None:
    assert min(outcome.messages for outcome in played) >= 100
