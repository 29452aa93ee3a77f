"""Real workers on a real broker are killed, misled and robbed: `ackwise reconcile` names every anomaly and accuses nothing else.

What is true comes from the producer's delivery reports, the handler's own ledger and the broker, never through Ackwise.
"""

from __future__ import annotations

import itertools
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from tests.eventfiles import events_in
from tests.shared import SharedKafka
from tests.spark.injected.hostile import Orders
from tests.spark.injected.mischief import GRACE, Found, do_mischief
from tests.spark.injected.orderly import Scene
from tests.spark.reconciling import reconciled

from ackwise.middleware.events import EventCode

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]  # kills workers, and waits until no order is open

#: Chooses the orders, which of them something happens to, and when workers are killed.
SEED: Final = 7

#: What must be said of somebody, whomever the kills have saved.
ANOMALIES: Final = {"LOST_PRODUCED", "RETRY_LOST", "STUCK", "COMMITTED_PAST", "MULTI_EXECUTED", "LOGICAL_DUPLICATE"}


def judged(events: Path, produced: Path, out: Path) -> tuple[int, Found]:
    """What the command says, with its exit code. No worker lives any more."""
    # Nobody has to wait until the writers count as dead and their leases are over.
    soon = datetime.now(UTC) + timedelta(minutes=1)
    options = {"--out": out, "--produced": produced, "--as-of": soon.isoformat(), "--grace": f"{GRACE:g}s", "--writer-timeout": "1s"}
    result = reconciled(events, *(str(word) for option in options.items() for word in option))
    assert result.exit_code in (0, 1, 3), result.output
    return result.exit_code, Found.read(out)


def file_in_between(events: Path) -> Path:
    """The file that says most of orders that were billed, among those that their writers went on after."""
    files = sorted((events / "events").rglob("*.parquet"), key=lambda file: file.name)
    followed = [file for file, later in itertools.pairwise(files) if file.name.split("-")[1] == later.name.split("-")[1]]
    return max(followed, key=lambda file: [event["event_type"] for event in events_in(file)].count(EventCode.SUCCEEDED))


@pytest.mark.usefixtures("engine")
async def test_every_anomaly_is_named_and_what_a_lost_file_hides_is_unknown(kafka: SharedKafka, tmp_path: Path) -> None:
    robbed = Scene(Orders(kafka.bootstrap, "mischief", str(tmp_path), f"sqlite:///{tmp_path / 'claims.db'}"), random.Random(SEED))
    try:
        truth = await do_mischief(robbed)
        produced = robbed.report(tmp_path / "produced.parquet")
    finally:
        robbed.ledger.close()
    code, found = judged(robbed.events, produced, tmp_path / "out")
    assert truth.contradictions(found) == []
    assert frozenset().union(*found.words.values()) >= ANOMALIES
    assert code == 1

    rest = tmp_path / "rest"
    shutil.copytree(robbed.events, rest)
    file_in_between(rest).unlink()
    _, left = judged(rest, produced, tmp_path / "of-rest")
    assert truth.contradictions(left, may_be_unknown=True) == []
    assert left.accused() <= found.accused()
    assert any("UNKNOWN_EXPORT_GAP" in words for words in left.words.values())
