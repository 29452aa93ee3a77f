"""Accounts that add up, and accounts that do not. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.fold.test_facts import said
from tests.spark.histories import History
from tests.spark.reconciling import AS_OF, reconciled, root_of

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import ROLES, Committed, establish
from ackwise.spark.judge.accounts import UnbalancedAccounts, check, keep
from ackwise.spark.local.session import local_engine
from ackwise.spark.results.tables import offsets
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import Verdict

FACTS = establish(
    [said(1, pk=7, start=10), said(1, pk=8, start=0, roles=ROLES["retry"])._replace(topic="g.retry"), said(1, pk=9)._replace(topic="x")],
    ReconcileConfig(),
)
COMMITS = {7: Committed(7, 20, None, ((18, 20),)), 8: Committed(8, 5, None), 9: Committed(9, 5, None)}


def test_accounts_are_kept_for_sources_whose_first_offset_is_known() -> None:
    (account,) = keep(FACTS, COMMITS, [(7, Verdict.EXACTLY_ONCE, 7)], {7: {"GAP": 2, "LOST": 1, "NEVER_SEEN": 0}})
    assert (account.partition.topic, account.start, account.committed, account.expected) == ("orders", 10, 20, 10)
    assert dict(account.verdicts) == {Verdict.LOST: 1, Verdict.EXACTLY_ONCE: 7}
    assert (account.gaps, account.rewound, account.balance) == (2, True, 0)
    check([account])


@pytest.mark.parametrize(("counted", "balance"), [(9, r"\+1"), (12, "-2")])
def test_an_offset_that_is_missing_or_counted_twice_is_refused(counted: int, balance: str) -> None:
    accounts = keep(FACTS, COMMITS, [(7, Verdict.EXACTLY_ONCE, counted)], {})
    with pytest.raises(UnbalancedAccounts, match=f"orders/0 of group g: 10 offsets from 10 to 20, and {balance} of them"):
        check(accounts)


def test_accounts_that_do_not_add_up_end_the_run_and_nothing_is_concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = keep(FACTS, COMMITS, [(7, Verdict.EXACTLY_ONCE, 9)], {})
    monkeypatch.setattr("ackwise.spark.job.keep", lambda *arguments: wrong)
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1"))
    result = reconciled(root, "--as-of", AS_OF, "--out", tmp_path / "out")
    assert isinstance(result.exception, UnbalancedAccounts), result.output
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_commit_before_the_first_offset_leaves_nothing_to_account_for() -> None:
    (account,) = keep(FACTS, {7: Committed(7, 4, None)}, [], {})
    assert (account.expected, account.balance) == (0, 0)


def test_an_offset_that_several_handlers_read_counts_once_by_the_worst_of_their_verdicts() -> None:
    rows = [(1, 0, int(Verdict.EXACTLY_ONCE)), (1, 0, int(Verdict.LOST)), (1, 1, int(Verdict.EXACTLY_ONCE)), (1, 2, int(Verdict.PENDING))]
    with local_engine() as local:
        judged = rows_of(local, [(*row, 0, 2) for row in rows], "pk long, offset long, verdict int, start long, committed long")
        found = {(row["pk"], row["verdict"]): row["count"] for row in offsets(judged).collect()}
    assert found == {(1, Verdict.LOST): 1, (1, Verdict.EXACTLY_ONCE): 1}
