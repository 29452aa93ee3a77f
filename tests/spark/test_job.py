"""The job on Spark says what the oracle says, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.spark.conftest import UNIVERSES
from tests.spark.reference.test_oracle import contradictions

if TYPE_CHECKING:
    from tests.spark.running import Answer

#: At night: what Spark leaves behind is compared with what the local engine does (`local/test_engine.py`), and that with the oracle.
pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def test_the_job_says_of_every_case_and_universe_what_the_oracle_says(bulk: Answer) -> None:
    assert contradictions(bulk.rulings, range(UNIVERSES)) == []
    assert [account for account in bulk.accounts if account.balance] == []
