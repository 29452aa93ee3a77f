"""The hostile client itself: what it is told it does, and it can be told the same again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3
from aiokafka.protocol.fetch import FetchResponse_v4
from aiokafka.protocol.metadata import MetadataResponse_v0
from tests.failures.hostile.hand import deal

from ackwise.testing.hostile.harm import HARMS, corrupt, empty, failed, short
from ackwise.testing.hostile.plan import Fault, Plan


async def nothing() -> str:
    return "answered"


def test_a_fault_is_read_as_it_is_written_and_what_is_none_is_refused() -> None:
    for text in ("relay.OffsetFetch:loading", "worker.drain:raises-after@3", "worker.Fetch:corrupt@2x4"):
        assert str(Fault.parse(text)) == text
    for text in ("", "relay.OffsetFetch", "relay.OffsetFetch:loadin", "relay:loading", "relay.OffsetFetch:loading@x"):
        with pytest.raises(ValueError, match="is no fault"):
            Fault.parse(text)


async def test_a_fault_strikes_the_calls_that_it_names_and_no_other() -> None:
    plan = Plan.parse("worker.Fetch:raises@2x2 relay.Fetch:raises-oddly")
    came = []
    for call in ("worker.Fetch",) * 5 + ("relay.ListOffsets",):
        try:
            came.append(await plan.pass_through(call, nothing))
        except RequestTimedOutError:
            came.append("raised")
    assert came == ["answered", "raised", "raised", "answered", "answered", "answered"]
    assert plan.unspent == ["relay.Fetch:raises-oddly"]
    assert str(plan) == "worker.Fetch:raises@2x2 relay.Fetch:raises-oddly"


async def test_faults_of_one_call_strike_one_after_the_other() -> None:
    plan = Plan.parse("worker.Fetch:raises worker.Fetch:raises-oddly")
    for error in (RequestTimedOutError, ValueError):
        with pytest.raises(error):
            await plan.pass_through("worker.Fetch", nothing)
    assert plan.unspent == []


async def test_an_answer_in_which_nothing_can_be_changed_is_spared_and_the_next_is_changed() -> None:
    plan = Plan.parse("worker.OffsetCommit:empty")
    answers = [OffsetCommitResponse_v3(0, []), OffsetCommitResponse_v3(0, [("orders", [(0, 0)])])]

    async def commit() -> Any:
        return answers.pop(0)

    await plan.pass_through("worker.OffsetCommit", commit)
    assert plan.unspent == ["worker.OffsetCommit:empty"]
    changed: Any = await plan.pass_through("worker.OffsetCommit", commit)
    assert (changed.topics, plan.unspent) == ([], [])


async def test_a_harm_makes_the_call_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.testing.hostile.harm._LATE", 0.0)
    calls: Counter[str] = Counter()

    async def harmed(harm: str) -> None:
        async def call() -> None:
            calls[harm] += 1

        await HARMS[harm](call)

    sent = {"raises": 0, "raises-after": 1, "cancelled": 0, "cancelled-after": 1, "twice": 2, "late": 1}
    await asyncio.gather(*map(harmed, sent), return_exceptions=True)
    assert {harm: calls[harm] for harm in sent} == sent


async def test_a_call_that_is_never_answered_ends_when_it_is_cancelled() -> None:
    calling = asyncio.ensure_future(HARMS["never"](nothing))
    done, _ = await asyncio.wait({calling}, timeout=0.01)
    assert not done
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()


def test_an_answer_about_offsets_is_changed_as_a_coordinator_would_answer() -> None:
    cases: list[tuple[str, Callable[[Any], Any], object, int]] = [
        ("short", short, [("orders", [(1, 8, "", 0)])], 0),
        ("empty", empty, [], 0),
        ("loading", failed(14), [], 14),
        ("no-topic-one", failed(3, one=True), [("orders", [(0, -1, "", 3), (1, 8, "", 0)])], 0),
    ]
    for case, change, topics, code in cases:
        answer = change(OffsetFetchResponse_v3(0, [("orders", [(0, 7, "", 0), (1, 8, "", 0)])], 0))
        assert (answer.topics, answer.error_code) == (topics, code), case


def test_a_flipped_bit_is_one_that_the_checksum_covers_of_partition_0_alone_and_of_a_fetch_that_brings_something() -> None:
    records = bytes(61)
    answer: Any = corrupt(FetchResponse_v4(0, [("orders", [(0, 0, 9, 9, [], records), (1, 0, 9, 9, [], records)])]))
    (_, [(*_, flipped), (*_, whole)]) = answer.topics[0]
    assert whole == records
    assert [at for at in range(61) if flipped[at] != records[at]] == [21]
    assert corrupt(FetchResponse_v4(0, [("orders", [(0, 0, 9, 9, [], b"")])])) is None


def test_metadata_are_shortened_by_a_topic() -> None:
    answer: Any = short(MetadataResponse_v0([], [(0, "orders", []), (0, "paid", [])]))
    assert answer.topics == [(0, "paid", [])]


def test_what_is_dealt_has_every_fault_once_and_is_the_same_for_the_same_seed() -> None:
    harms = {"relay.Fetch": ["raises", "late@2", "short"], "worker.Fetch": ["empty"]}
    plans = deal(harms, 7)
    assert sorted(str(fault) for plan in plans for fault in plan.faults) == [
        "relay.Fetch:late@2",
        "relay.Fetch:raises",
        "relay.Fetch:short",
        "worker.Fetch:empty",
    ]
    assert len(plans) == 3
    assert list(map(str, plans)) == list(map(str, deal(harms, 7)))
