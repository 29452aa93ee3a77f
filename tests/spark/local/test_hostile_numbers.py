"""Numbers that no worker writes are judged or counted as strange, as the oracle does it; none stops the audit or takes its memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spark.cases import CONFIG
from tests.spark.histories import write_parquet
from tests.spark.hostile import Hostile, hostile_events, hostile_rows
from tests.spark.reconciling import name_of, reconciled
from tests.spark.running import run

from ackwise.spark.bins.session import binned, in_this_process
from ackwise.spark.local.session import local_engine
from ackwise.spark.reference.oracle import Ruling, rule

#: Offsets whose verdict is compared: all that the histories name, and some that only a range has.
OFFSETS = range(200)
#: Of so many one is looked at in each run, and all of them at night.
ONE_OF = 20


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("one_of", [ONE_OF, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("bins", [0, 3])
@pytest.mark.parametrize("made", [hostile_events, hostile_rows])
def test_a_number_that_no_worker_writes_is_judged_as_the_oracle_does_it(
    made: Callable[[], Iterator[Hostile]], bins: int, one_of: int, tmp_path: Path
) -> None:
    chosen = [each for each in made() if one_of == 1 or random.Random(each.group).randrange(one_of) == 0]
    file = write_parquet(tmp_path / "events.parquet", [row for each in chosen for row in each.rows])
    with binned(in_this_process, bins, tmp_path / "rows") if bins else local_engine() as session:
        found = run(session, [file], CONFIG).rulings
    wrong = [each.group for each in chosen if comparable(found[each.group]) != comparable(rule(each.events, CONFIG, offsets=OFFSETS))]
    assert wrong == []


def comparable(ruling: Ruling) -> Any:
    """Without the offsets that are not looked at."""
    absent = {place: {offset: name for offset, name in of.items() if offset in OFFSETS} for place, of in ruling.absent.items()}
    return replace(ruling, absent=absent)


def test_the_report_is_written_whatever_the_numbers(tmp_path: Path) -> None:
    chosen = [each for made in (hostile_events, hostile_rows) for each in made() if random.Random(each.group).randrange(60) == 0]
    rows = [row for each in chosen for row in each.rows]
    write_parquet(tmp_path / "root" / "events" / name_of(1, 0, len(rows)), rows)
    found = reconciled(tmp_path / "root", "--out", tmp_path / "out")
    assert (found.exit_code, found.exception.__class__) == (1, SystemExit)
    assert "events were passed over: this version does not know what they mean" in " ".join(found.output.split())
