"""RocketMQ's transactional messages (rows H.. of `docs/semantics.md`): when it checks a half message, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from tests.fakes import Sink
from tests.plugin.outbox.halfstore import HalfStore, Local

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import Prepared, RowState, TransactionOutcome
from ackwise.plugin.outbox.checkback import CheckBack
from ackwise.plugin.outbox.halfmessages import HalfMessages

HALF = Outgoing("paid", b"42")


class Group:
    """A producer group without a barrier: its callback answers `answer`, or raises it."""

    def __init__(self) -> None:
        self.store = HalfStore()
        self.asked: list[Prepared] = []
        self.answer: TransactionOutcome | Exception = TransactionOutcome.UNKNOWN
        self.sink = Sink()
        self.instances = [CheckBack(self.store, producer_group="orders", check=self.check, sink=self.sink)]

    async def check(self, half: Prepared) -> TransactionOutcome:
        self.asked.append(half)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def prepare(self, *, first_check: float = 6.0, group: str = "orders") -> None:
        await self.store.prepare([HALF], "tx", producer_group=group, first_check=first_check)

    async def pass_at(self, *times: float) -> None:
        """What RocketMQ calls a pass, at each of these times."""
        for self.store.now in times:
            for instance in self.instances:
                await instance.look()

    def state(self) -> RowState:
        state: RowState = self.store.rows[0].state
        return state


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def half(group: Group) -> HalfMessages:
    return HalfMessages(group.store, "orders", None, first_check=6.0)


async def test_H01_what_can_not_be_prepared_begins_no_local_transaction(group: Group, half: HalfMessages) -> None:
    group.store.fail = lambda call: call == "prepare"
    with pytest.raises(StoreUnavailable):
        async with half.prepare([HALF]):
            raise AssertionError("the local transaction has started")
    assert group.store.rows == []


async def test_H02_a_half_message_whose_fate_is_not_known_is_rolled_back_and_nothing_was_done(group: Group) -> None:
    written = HalfMessages(group.store, "orders", group.store, first_check=6.0)
    prepare = group.store.prepare

    async def prepare_and_lose_the_answer(*arguments: object, **options: object) -> None:
        await prepare(*arguments, **options)  # type: ignore[arg-type]
        raise StoreUnavailable("the answer was lost")

    group.store.prepare = prepare_and_lose_the_answer  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        async with written.prepare([HALF]):
            raise AssertionError("the local transaction has started")
    await group.pass_at(6.0)
    assert group.state() is RowState.LOCAL_ROLLBACK


async def test_H03_a_local_transaction_that_raises_is_rolled_back_as_its_database_says(group: Group) -> None:
    decisive = HalfMessages(group.store, "orders", group.store, first_check=6.0)

    async def pay() -> None:
        async with decisive.prepare([HALF]) as transaction:
            local = Local()
            await transaction.barrier(local)
            local.roll_back()
            raise ValueError("no money")

    with pytest.raises(ValueError, match="no money"):
        await pay()
    assert (group.state(), group.store.rows[0].checks) == (RowState.LOCAL_ROLLBACK, 0)


async def test_H03_where_only_a_callback_knows_what_raised_is_asked_about_later(group: Group, half: HalfMessages) -> None:
    with pytest.raises(ValueError, match="no answer"):
        async with half.prepare([HALF]):
            raise ValueError("no answer")
    assert group.state() is RowState.PREPARED
    group.answer = TransactionOutcome.COMMIT
    await group.pass_at(6.0)
    assert group.state() is RowState.LOCAL_COMMIT


async def test_H04_three_passes_within_the_first_second_check_nothing(group: Group) -> None:
    await group.prepare()
    await group.pass_at(0.0, 0.5, 1.0)
    assert group.asked == []


async def test_H06_an_immunity_of_an_hour_consumes_no_checks(group: Group) -> None:
    await group.prepare(first_check=3600.0)
    await group.pass_at(*(10.0 + 30 * number for number in range(15)))
    assert (group.asked, group.state(), group.store.rows[0].checks) == ([], RowState.PREPARED, 0)
    await group.pass_at(3600.0)
    assert [half.checks for half in group.asked] == [0]


async def test_H07_without_immunity_the_first_pass_checks(group: Group) -> None:
    await group.prepare(first_check=0.0)
    await group.pass_at(1.0)
    assert len(group.asked) == 1


async def test_H08_a_half_message_of_three_days_is_checked_and_never_discarded(group: Group) -> None:
    await group.prepare()
    group.answer = TransactionOutcome.COMMIT
    await group.pass_at(73 * 3600.0)
    assert group.state() is RowState.LOCAL_COMMIT


async def test_H09_a_commit_before_any_check_leaves_none(group: Group, half: HalfMessages) -> None:
    async with half.prepare([HALF]):
        pass
    await group.pass_at(6.0, 36.0)
    assert (group.asked, group.state()) == ([], RowState.LOCAL_COMMIT)


async def test_a_commit_after_a_check_is_the_end_of_all_checks(group: Group, half: HalfMessages) -> None:
    """H10, H11: there is one row, and no copy of it."""
    async with half.prepare([HALF]):
        await group.pass_at(6.0)
    await group.pass_at(36.0, 66.0, 96.0)
    assert (len(group.asked), group.state()) == (1, RowState.LOCAL_COMMIT)


async def test_H14_another_producer_group_is_given_nothing_and_can_decide_nothing(group: Group) -> None:
    await group.prepare(group="payments")
    group.answer = TransactionOutcome.ROLLBACK
    await group.pass_at(6.0, 36.0)
    assert (group.asked, group.state()) == ([], RowState.PREPARED)


async def test_H15_passes_in_which_nobody_can_be_asked_do_not_count(group: Group) -> None:
    await group.prepare()
    (connected,) = group.instances
    group.instances = [CheckBack(group.store, producer_group="orders", sink=group.sink)]
    await group.pass_at(*(6.0 + 60 * number for number in range(20)))
    assert (group.state(), group.store.rows[0].checks, group.instances[0].counts.unanswered) == (RowState.PREPARED, 0, 20)
    assert (group.store.probes, group.store._barriers) == ([], {}), "without a barrier nothing is probed"
    group.instances, group.answer = [connected], TransactionOutcome.COMMIT
    await group.pass_at(2000.0)
    assert group.state() is RowState.LOCAL_COMMIT


async def test_a_check_that_raises_or_returns_nothing_does_not_count(group: Group) -> None:
    await group.prepare()
    answers: list[object] = [ConnectionError("away"), None, True]
    for number, group.answer in enumerate(answers):  # type: ignore[assignment]
        await group.pass_at(6.0 + 60 * number)
    assert (len(group.asked), group.state(), group.store.rows[0].checks) == (3, RowState.PREPARED, 0)


async def test_H16_a_commit_that_comes_late_counts_if_no_check_was_first(group: Group, half: HalfMessages) -> None:
    async with half.prepare([HALF], first_check=60.0):
        group.store.now = 65.0
    assert group.state() is RowState.LOCAL_COMMIT


async def test_H17_an_immunity_of_its_own_says_when_the_first_check_comes() -> None:
    for immunity in (1.0, 5.0, 7.0, 6.0, 60.0):
        group = Group()
        async with HalfMessages(group.store, "orders", None, first_check=6.0).prepare([HALF], first_check=immunity):
            await group.pass_at(immunity - 0.1)
            assert group.asked == [], immunity
            await group.pass_at(immunity)
            assert len(group.asked) == 1, immunity


async def test_H18_one_that_has_had_its_checks_is_parked_unasked(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    await group.prepare()
    group.store.rows[0].checks = 15
    with caplog.at_level(logging.ERROR, "ackwise"):
        await group.pass_at(6.0)
    assert (group.asked, group.state()) == ([], RowState.MESSAGE_ERROR)
    assert [record.__dict__["event"] for record in caplog.records] == ["half message parked"]


async def test_fifteen_answered_checks_park_it_with_an_alert_an_event_and_a_count(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    await group.prepare()
    with caplog.at_level(logging.ERROR, "ackwise"):
        await group.pass_at(*(6.0 + 30 * number for number in range(14)))
        assert (group.state(), caplog.records) == (RowState.PREPARED, [])
        await group.pass_at(6.0 + 30 * 14, 6.0 + 30 * 15)
    assert (group.state(), len(group.asked), group.store.rows[0].cause) == (
        RowState.MESSAGE_ERROR,
        15,
        "15 checks did not tell how its local transaction ended",
    )
    assert len(caplog.records) == 1
    codes = [event.code for event in group.sink.events]
    assert (codes.count(EventCode.OUTBOX_CHECKED), codes.count(EventCode.OUTBOX_PARKED)) == (15, 1)
    assert group.instances[0].counts.parked == 1


async def test_checks_come_after_6_seconds_and_then_every_30(group: Group) -> None:
    await group.prepare()
    times: list[float] = []
    for second in range(100):
        before = len(group.asked)
        await group.pass_at(float(second))
        times += [float(second)] * (len(group.asked) - before)
    assert times == [6.0, 36.0, 66.0, 96.0]


async def test_any_instance_of_the_group_answers_and_only_one_is_asked() -> None:
    for answer, state in ((TransactionOutcome.COMMIT, RowState.LOCAL_COMMIT), (TransactionOutcome.ROLLBACK, RowState.LOCAL_ROLLBACK)):
        group = Group()
        await group.prepare()
        group.answer = answer
        group.instances.append(CheckBack(group.store, producer_group="orders", check=group.check))
        await group.pass_at(6.0, 36.0)
        assert (len(group.asked), group.state()) == (1, state)


async def test_a_barrier_is_probed_in_its_own_database_and_in_no_other(group: Group) -> None:
    shop, wrong = HalfStore("shop"), HalfStore("another")
    await group.store.prepare([HALF], "tx", producer_group="orders", barrier_in="shop")
    shop.commit("tx")
    ask_where: Callable[[HalfStore], CheckBack] = lambda business: CheckBack(  # noqa: E731
        group.store, producer_group="orders", business=business, check=group.check
    )
    group.answer = TransactionOutcome.ROLLBACK
    group.instances = [ask_where(wrong)]
    await group.pass_at(6.0)
    assert (wrong.probes, group.store.probes, group.asked, group.state()) == ([], [], [], RowState.PREPARED)
    group.instances = [ask_where(shop)]
    await group.pass_at(66.0)
    assert group.state() is RowState.LOCAL_COMMIT


async def test_whoever_has_the_outbox_alone_answers_for_all_groups_whose_barrier_is_there(group: Group) -> None:
    for name, where in (("orders", "db-1"), ("payments", "db-1"), ("payments", "shop"), ("orders", "")):
        await group.store.prepare([HALF], f"{name}-{where}", producer_group=name, barrier_in=where)
    group.store.commit("payments-db-1")
    group.instances = [CheckBack(group.store)]
    await group.pass_at(6.0)
    assert [row.state for row in group.store.rows] == [RowState.LOCAL_ROLLBACK, RowState.LOCAL_COMMIT, RowState.PREPARED, RowState.PREPARED]


async def test_the_messages_of_one_local_transaction_are_asked_about_once(group: Group) -> None:
    await group.store.prepare([HALF, HALF, HALF], "tx", producer_group="orders")
    group.answer = TransactionOutcome.COMMIT
    await group.pass_at(6.0)
    assert (len(group.asked), {row.state for row in group.store.rows}) == (1, {RowState.LOCAL_COMMIT})
