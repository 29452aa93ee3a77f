"""`commit="manual"` of a partition in order: what succeeded is done at `COMMIT`, and comes again at `ROLLBACK`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.plugin.group.ordered import Shop, counting

from ackwise import App, ConfigurationError, Transactional
from ackwise.middleware.disposition import CONSUME_LATER, CONSUME_SUCCESS, ConsumeStatus
from ackwise.middleware.events import EventCode
from ackwise.middleware.message import Message
from ackwise.middleware.ordering import RetryInPlace

COMMIT, ROLLBACK = ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK


SHOP = {"commit": "manual", "max_batch": 2}


def saying(says: Callable[[Any], object]) -> Any:
    """A handler that returns what `says` says."""

    async def handle(argument: Any) -> object:
        return says(argument)

    return handle


def rolled_back_once(here: Callable[[], Shop], calls: int) -> Any:
    """A handler that rolls back at its call of that number, and commits from offset 102 on otherwise."""

    def says(argument: Any) -> object:
        first = argument if isinstance(argument, Message) else argument[0]
        if first.offset != 102:
            return None
        return ROLLBACK if len(here().seen) == calls else COMMIT

    return saying(says)


async def test_O10_a_success_is_consumed_and_not_committed_and_the_partition_goes_on(shop: Any) -> None:
    for dedup in (False, True):
        here = shop(saying(lambda batch: CONSUME_SUCCESS), dedup=dedup)
        here.offer(4)
        await here.until(lambda here=here: len(here.lane.uncommitted) == 2)
        assert (here.seen, here.lane.watermark.commit, here.lane.in_hand) == ([[100, 101], [102, 103]], 100, 4)
        assert EventCode.SUCCEEDED not in here.sink.codes(100)


async def test_O11_a_commit_is_a_success_of_all_since_the_last_one(shop: Any) -> None:
    for dedup in (False, True):
        here = shop(saying(lambda batch: COMMIT if batch[0].offset == 102 else None), dedup=dedup)
        here.offer(4)
        await here.settled(4)
        assert (here.seen, here.lane.uncommitted) == ([[100, 101], [102, 103]], [])
        assert all(here.sink.codes(offset).count(EventCode.SUCCEEDED) == 1 for offset in range(100, 104))


async def test_O12_a_rollback_brings_back_all_since_the_last_commit_in_order_and_charges_nothing(shop: Any) -> None:
    twice = {"key": lambda message: "other" if message.offset == 102 else "same"}  # 101 is a duplicate, which went along with 100
    for options, calls, seen in (
        ({"dedup": False}, 2, [[100, 101], [102, 103]]),
        ({"dedup": True}, 2, [[100, 101], [102, 103]]),
        ({"kind": "message", "max_batch": 10}, 3, [[100], [101], [102]]),
        ({"dedup": twice, "max_batch": 1}, 2, [[100], [102]]),
    ):
        counted: list[int] = []
        here: Shop = shop(counting(rolled_back_once(lambda: here, calls), counted), **options)  # noqa: B023  # it is called in this round
        here.offer(4 if len(seen[0]) == 2 else 3)
        await here.until(lambda: here.seen[: 2 * len(seen)] == seen + seen)  # noqa: B023  # noqa: B023
        assert set(counted) == {0}, options


async def test_O13_a_suspension_brings_back_its_own_batch_alone(shop: Any) -> None:
    def says(batch: Any) -> object:
        if batch[0].offset == 102 and batch[0].reconsume_times == 0:
            return CONSUME_LATER
        return COMMIT if batch[0].offset >= 102 else None

    here = shop(saying(says))
    here.offer(4)
    await here.settled(4)
    assert here.seen == [[100, 101], [102, 103], [102], [103]]


async def test_what_is_not_committed_at_a_stop_is_left_to_the_next_owner_and_its_claims_can_be_given_back(shop: Any) -> None:
    here = shop(saying(lambda batch: None), dedup=True)
    here.offer(2)
    await here.until(lambda: here.lane.uncommitted)
    await here.stop()
    assert (here.lane.watermark.commit, [run.first for run in here.lane.unsettled()]) == (100, [100])
    assert here.lane.in_place == []


async def test_a_commit_whose_claim_was_lost_is_claimed_again_and_completed_not_run(shop: Any) -> None:
    here = shop(saying(lambda batch: COMMIT if batch[0].offset == 102 else None), dedup=True)
    here.offer(2)
    await here.until(lambda: here.lane.uncommitted)
    here.store.inner = type(here.store.inner)()  # it has forgotten the claims
    here.offer(2)
    await here.settled(4)
    assert here.seen == [[100, 101], [102, 103]]


async def test_a_partition_full_of_what_was_never_committed_says_once_that_it_stands_still(
    shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = shop(saying(lambda batch: None), max_batch=200)
    assert (here.lane.is_full(), here.lane.stalled) == (False, None)
    here.offer(1001)
    await here.until(lambda: sum(map(len, here.lane.uncommitted)) == 1001)
    await here.until(lambda: not here.lane.running)
    for _ in range(3):
        assert here.lane.is_full()
    assert here.lane.stalled == (
        "it is full with 1001 messages that its handler has consumed and not committed (commit='manual'), so nothing is fetched; let it "
        "return COMMIT after fewer messages and restart the worker, which brings these back"
    )
    assert len([line for line in caplog.messages if line.startswith("a partition stands still: ")]) == 1


async def test_a_partition_is_not_said_to_stand_still_for_what_others_have_in_hand(shop: Any) -> None:
    here = shop(saying(lambda batch: None))
    here.offer(2)
    await here.until(lambda: here.lane.uncommitted and not here.lane.running)
    here.lane.budget.used = here.lane.budget.limit + 1
    assert (here.lane.is_full(), here.lane.stalled) == (True, None)


async def test_O02_O03_without_manual_a_commit_is_a_success_and_a_rollback_is_no_result_and_suspends(shop: Any) -> None:
    here: Shop = shop(saying(lambda batch: COMMIT if batch[0].offset == 100 or len(here.seen) > 2 else ROLLBACK), commit="auto")
    here.offer(3)
    await here.settled(3)
    assert (here.seen, here.sent) == ([[100, 101], [102], [102]], [])
    assert [event.error for event in here.sink.events if event.code is EventCode.FAILED] == ["InvalidHandlerResult"]


def test_a_commit_mode_that_can_not_work_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"commit": "later", "order": "partition", "in_place": RetryInPlace(3)}, "commit of agent 'bill' is 'later'"),
        ({"commit": "manual"}, "has commit='manual' and order=None; it holds for order='partition'"),
        ({"commit": "manual", "order": "key", "in_place": RetryInPlace(3)}, "has commit='manual' and order='key'"),
    ]
    for options, sentence in refused:
        with pytest.raises(ConfigurationError, match=sentence):
            App("billing").agent("orders", name="bill", **options)(_bill)


def test_manual_commits_are_refused_in_a_transaction() -> None:
    app = App("billing")
    app.use(Transactional("sqlite:///shop.db"))
    app.agent("orders", order="partition", commit="manual", in_place=RetryInPlace(3))(_bill)
    assert any("has commit='manual', and Transactional commits what each call wrote" in said for said in app.explain().refusals)


async def _bill(message: Message[bytes]) -> None: ...


async def test_a_duplicate_of_what_is_not_committed_goes_along_with_it_and_stops_nothing(shop: Any) -> None:
    for max_batch in (1, 2):
        here = shop(
            saying(lambda batch: COMMIT if batch[-1].offset >= 102 else None),
            dedup={"key": lambda message: "other" if message.offset == 102 else "same"},
            max_batch=max_batch,
        )
        here.offer(3)
        await here.settled(3)
        assert here.seen == [[100], [102]]
        assert EventCode.DUP_SUPPRESSED in here.sink.codes(101)


async def test_many_messages_without_a_commit_are_said_now_and_then(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    here = shop(saying(lambda batch: None), max_batch=200)
    here.offer(900)
    await here.until(lambda: sum(map(len, here.lane.uncommitted)) == 900)
    assert caplog.text.count("messages succeeded and are not committed") == 1
