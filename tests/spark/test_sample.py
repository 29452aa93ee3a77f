"""Some messages are judged twice, and a job that says something else of one of them fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.cases import CASES
from tests.spark.histories import History
from tests.spark.reconciling import AS_OF, reconciled, root_of, summary

from ackwise.spark import judging
from ackwise.spark.frames import Column, DataFrame, F
from ackwise.spark.judge import verdicts
from ackwise.spark.sample import Disagreement
from ackwise.spark.vocabulary import Flag, Verdict


@pytest.mark.usefixtures("engine")
def test_every_message_of_the_cases_is_judged_alike(tmp_path: Path) -> None:
    for place, case in enumerate(CASES.values()):
        root_of(tmp_path / f"{place % 4}", case.history)
    roots = [tmp_path / f"{place}" for place in range(4)]
    result = reconciled(*roots, "--as-of", AS_OF, "--verify-sample", "10000", "--out", tmp_path / "out")
    assert "judged once more by other means, with no difference" in " ".join(result.output.split()), result.output
    assert sum(summary(tmp_path / "out")["verdicts"].values()) > 100


@pytest.mark.usefixtures("engine")
def test_a_job_that_says_something_else_concludes_nothing_and_names_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "RECEIVED_RANGE[0,6) 0:CS 1:CS 2:CFB 3:CS 4:D 5:K 2@2:CS W=6"))

    def judges_wrongly(column: str, value: int) -> None:
        def wrong(*frames: DataFrame | int | None) -> DataFrame:
            said: Column = F.when(F.col("offset") == 3, F.lit(value)).otherwise(F.col(column))
            return verdicts.judge(*frames).withColumn(column, said)  # type: ignore[arg-type]  # passed on as it came

        monkeypatch.setattr(judging, "judge", wrong)

    for column, value, words in (
        ("verdict", int(Verdict.DEAD_LETTERED), "DEAD_LETTERED, and the plain algebra EXACTLY_ONCE"),
        ("flags", int(Flag.RETRIED), "EXACTLY_ONCE + RETRIED, and the plain algebra EXACTLY_ONCE"),
    ):
        judges_wrongly(column, value)
        result = reconciled(root, "--as-of", AS_OF, "--verify-sample", "20", "--out", tmp_path / "out")
        assert isinstance(result.exception, Disagreement), result.output
        assert str(result.exception).startswith(f"orders/0/3 of group g, agent bill: the job says {words}, as for 1 of 6 messages")
        assert not (tmp_path / "out" / "summary.json").exists()
