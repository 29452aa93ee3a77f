"""What waits in a partition in order holds back what was admitted behind it."""

from __future__ import annotations

from typing import Any

from tests.tables import each

from ackwise.middleware.message.disposition import DONE, Delayed, Disposition
from ackwise.middleware.pipeline.start import first_unfinished, hold_back
from ackwise.middleware.runs.run import Stage


@each(
    ("stage", "disposition", "waiting"),
    [
        (Stage.WITHHELD, None, 101),
        (Stage.FETCHED, None, 101),
        (Stage.RULED, Delayed(), 101),
        (Stage.RULED, DONE, None),
        (Stage.SETTLED, DONE, None),
    ],
)
def test_what_is_not_done_holds_back_what_is_behind_it(
    make_spine: Any, stage: Stage, disposition: Disposition | None, waiting: int | None
) -> None:
    runs = first, middle, last = make_spine(None).entries(3)
    first.stage = last.stage = Stage.ADMITTED
    first.stage, middle.stage, last.stage = Stage.SETTLED, stage, Stage.ADMITTED
    middle.disposition = disposition
    assert first_unfinished([*runs]) == waiting
    hold_back([*runs], None, 5.0)
    assert last.stage is (Stage.ADMITTED if waiting is None else Stage.FETCHED)
