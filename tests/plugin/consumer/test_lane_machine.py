"""Lanes, watermark, map and waiting keys, against a plain model: whatever owners, handlers, commits and outages do to each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from tests.plugin.consumer.owning import LEASE, Call, How, Mode, Owner, Partition, VirtualLoop
from tests.waiting import turns

HOWS = st.sampled_from(["acknowledged", "acknowledged", "lost", "unheard"])
KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=6)
ENDS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["succeed", "succeed", "fail", "later"])), min_size=1, max_size=6)

#: Those that a machine of this size would fail: it is slow, and much is drawn for it.
HEALTH_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much)

#: Rounds of everything that may go on until a partition has end.
ROUNDS = 400


class Machine(RuleBasedStateMachine):
    """One partition. At each moment one owner has it; those that were cut off may still have handlers that run."""

    owner: Owner

    mode: Mode

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.owners: list[Owner] = []

    @initialize(dedup=st.booleans(), keys=KEYS)
    def begin(self, dedup: bool, keys: list[bytes | None]) -> None:
        self.partition = Partition(self.mode, dedup, self.loop)
        self.produce(keys, 0)
        self._own()

    def _own(self) -> None:
        async def own() -> None:
            self.owner = Owner(self.partition)
            self.owners.append(self.owner)

        self._do(own())

    def _do(self, what: Any = None) -> None:
        async def do() -> None:
            if what is not None:
                await what
            await turns()

        self.loop.run_until_complete(do())

    @rule(keys=KEYS, hole=st.integers(0, 2))
    @precondition(lambda self: len(self.partition.log) < 24)
    def produce(self, keys: list[bytes | None], hole: int) -> None:
        self.partition.end += hole // 2
        for key in keys:
            self.partition.log[self.partition.end] = key
            self.partition.end += 1

    @rule(most=st.integers(1, 8))
    def fetch(self, most: int) -> None:
        self.owner.fetch(most)
        self._do()

    @rule(ends=ENDS)
    @precondition(lambda self: self._open_calls())
    def end_calls(self, ends: list[tuple[int, str]]) -> None:
        for number, how in ends:
            if calls := self._open_calls():
                calls[number % len(calls)].end.set_result(how)
            self._do()

    def _open_calls(self) -> list[Call]:
        return [call for call in self.partition.calls if not call.owner.is_killed and not call.end.done()]

    @rule(how=st.one_of(HOWS, st.just("late")))
    def commit(self, how: How) -> None:
        if (committing := self.owner.commit(how)) is not None:
            if how == "late":
                self.loop.create_task(committing)
                self._do()
            else:
                self._do(committing)

    @rule()
    @precondition(lambda self: self.owner.late is not None and not self.owner.late.done())
    def a_late_answer_comes(self) -> None:
        assert self.owner.late is not None
        self.owner.late.set_result(None)
        self._do()

    @rule(last=st.one_of(st.none(), HOWS))
    def change_owners(self, last: How | None) -> None:
        """The owner is killed, or revoked with a last commit."""
        if last is None:
            self.owner.is_killed = True
        else:
            self._do(self.owner.leave(last))
        self._own()

    @rule(most=st.integers(1, 8), ends=ENDS, kills=st.booleans())
    def work_and_commit(self, most: int, ends: list[tuple[int, str]], kills: bool) -> None:
        """The way that a worker mostly goes, perhaps to its death."""
        self.fetch(most)
        self.end_calls(ends)
        self.commit("acknowledged")
        if kills:
            self.change_owners(None)

    @rule(seconds=st.sampled_from([0.06, 0.06, 1.0, 9.0]))
    def wait(self, seconds: float) -> None:
        """What is unavailable comes back meanwhile."""
        self.partition.store_is_down = self.partition.brokers_are_down = False
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        async def beat() -> None:
            await asyncio.sleep(seconds)
            for owner in self.owners:
                await owner.beat()

        self._do(beat())

    @rule(of_the_store=st.booleans())
    def an_outage_begins(self, of_the_store: bool) -> None:
        if of_the_store:
            self.partition.store_is_down = True
        else:
            self.partition.brokers_are_down = True

    @invariant()
    def nothing_broke(self) -> None:
        if self.owners:
            assert not self.partition.broken, self.partition.broken
            for owner in self.owners:
                if owner.work.done() and not owner.work.cancelled():
                    owner.work.result()

    def teardown(self) -> None:
        try:
            if self.owners:
                self._finish()
                self.nothing_broke()
        finally:
            self._close()

    def _finish(self) -> None:
        """With everything back, each message is finished and committed past."""
        partition = self.partition
        partition.store_is_down = partition.brokers_are_down = False
        if self.owner.late is not None and not self.owner.late.done():
            self.a_late_answer_comes()
        end = max(partition.log) + 1
        for _ in range(ROUNDS):
            self.owner.fetch(8)
            self._pass(0.0)
            for call in self._open_calls():
                call.end.set_result("succeed")
            self.commit("acknowledged")
            if partition.committed[0] >= end:
                break
            if not self._open_calls():
                self._pass(LEASE / 6)
        assert set(partition.log) - partition.finished == set(), "lost"
        assert partition.committed[0] >= end, f"stuck at {partition.committed} of {end}: {self.owner.lane.held} {self.owner.lane.queued}"

    def _close(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()


MODES = {
    "key": Mode("key", "message", 3),
    "key, batches": Mode("key", "batch", 2),
    "partition": Mode("partition", "message"),
    "partition, batches": Mode("partition", "batch"),
    "none, eight at a time": Mode(None, "message", 8),
    "none, batches": Mode(None, "batch", 2),
    "none, one at a time": Mode(None, "message"),
}


#: One mode for each commit, others with all tests; what is left is much the same, and tried at night.
MARKS = {
    "partition, batches": pytest.mark.slow,  # tries twenty histories of thirty steps
    "none, eight at a time": pytest.mark.slow,  # as above
    "none, batches": pytest.mark.slow,  # as above
    **dict.fromkeys(("key, batches", "partition", "none, one at a time"), pytest.mark.nightly),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in MODES])
def test_whatever_owners_handlers_and_commits_do_nothing_is_lost_out_of_order_or_run_against_a_promise(name: str) -> None:
    chosen = settings(
        max_examples=20, stateful_step_count=30, deadline=None, database=None, derandomize=True, suppress_health_check=HEALTH_CHECKS,
        print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    run_state_machine_as_test(type("Machine", (Machine,), {"mode": MODES[name]}), settings=chosen)
