"""What becomes of the records of a rung: when they are looked at, where they go, and what is done with those that can't."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.waiting import turns

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message.outgoing import MISSING, Outgoing, SendAnswer, SendFailed, TopicMissing
from ackwise.middleware.message.wire import BUDGET, Copy
from ackwise.middleware.policies.delaytopic import WAITS

from tests.plugin.delays.desk import NAMES, Broker, Desk  # isort: skip

RETRY, DELAY, LETTERS = NAMES.retry, NAMES.delay, NAMES.dead_letter

#: The partition of each wait.
RUNG = {wait: place + 1 for place, wait in enumerate(WAITS)}

UNAVAILABLE = PublishUnavailable("no broker")


async def test_a_rung_is_looked_at_when_its_wait_is_over_due_or_not_and_what_is_left_goes_on() -> None:
    """D05"""
    desk = Desk()
    desk.put(0, due=900.0)
    desk.put(1, due=1_010.3)
    desk.put(2, due=1_075.0)
    await desk.turn()
    assert (desk.went, desk.next_at) == ([], 1_010.0), "what is due stands in no other's way, and its writer chose the rung"
    await desk.turn(1_010.0)
    assert desk.went == [(RETRY, b"0"), (DELAY, b"2")]
    assert (desk.broker.sent[1].until, desk.watermark.commit) == (1_075_000, 1), "one is set aside for 0.3 s, and holds the commit"
    await desk.turn(1_010.299)
    assert len(desk.went) == 2
    await desk.turn(1_010.32)
    assert (desk.went[2:], desk.watermark.commit) == ([(RETRY, b"1")], 3)


async def test_the_first_appended_is_the_first_to_be_looked_at_and_a_part_of_a_fetch_too() -> None:
    desk = Desk()
    records = [desk.record(offset, due=1_000.0, appended=1_000.0 + offset) for offset in range(3)]
    desk.now = 1_003.0
    desk.runs += desk.pipeline.make(desk.place, records)
    await desk.until(1_011.5)
    assert desk.went == [(RETRY, b"0"), (RETRY, b"1")]
    await desk.until(1_012.0)
    assert desk.went[2:] == [(RETRY, b"2")]


async def test_a_copy_comes_back_on_the_partition_of_its_origin_with_its_key_and_headers_as_they_are() -> None:
    desk = Desk()
    desk.put(5)
    await desk.until(1_010.0)
    record = desk.record(5)
    assert desk.broker.sent == [Copy(RETRY, 2, b"key", b"5", record.headers)]


async def test_what_is_due_within_a_fiftieth_of_a_second_is_moved_together_and_none_is_early() -> None:
    desk = Desk()
    for offset in range(50):
        desk.put(offset, due=1_010.1 + offset / 1000)
    while desk.runs:
        before = len(desk.broker.sent)
        await desk.turn(desk.next_at)
        for copy in desk.broker.sent[before:]:
            late = round(desk.now * 1000) - int(dict(copy.headers)["ackwise-due"] or b"")
            assert 0 <= late <= 20
    assert len(desk.broker.sent) == 50
    assert desk.broker.log.count("read") <= 5


async def test_without_room_in_memory_what_is_left_is_waited_for_on_the_shortest_rung() -> None:
    desk = Desk()
    desk.has_room = False
    desk.put(0, due=1_010.3)
    await desk.turn(1_010.0)
    assert (desk.went, desk.broker.sent[0].until, desk.watermark.commit) == ([(DELAY, b"0")], 1_010_300, 1)


async def test_a_copy_hops_no_sooner_than_a_second_after_it_was_seen_first() -> None:
    """Where the broker's clock is behind by more than a rung."""
    desk = Desk()
    desk.put(0, due=1_080.0, appended=985.0)
    await desk.turn()
    assert (desk.went, desk.next_at) == ([], 1_001.0)
    await desk.turn(1_001.0)
    assert desk.went == [(DELAY, b"0")]


async def test_a_copy_from_a_clock_that_is_ahead_waits_for_its_rung_and_no_longer() -> None:
    desk = Desk()
    desk.put(0, due=1_020.0, appended=10**8, is_append_time=False)
    desk.put(1)
    await desk.until(1_010.0)
    assert sorted(desk.went) == [(DELAY, b"0"), (RETRY, b"1")]


@pytest.mark.parametrize("answer", [UNAVAILABLE, PublishUnavailable("no leader")])
async def test_a_copy_that_can_t_be_moved_blocks_nobody_and_takes_a_rung_again_after_ten_seconds(answer: PublishUnavailable) -> None:
    """D06"""
    desk = Desk()
    desk.put(0, 1, 2, due=1_000.0)
    desk.broker.answer = lambda copy: answer if (copy.topic, copy.value) == (RETRY, b"1") else None
    await desk.turn(1_010.0)
    assert (desk.went, desk.watermark.commit) == ([(RETRY, b"0"), (RETRY, b"2")], 1)
    desk.put(3, due=1_000.0, appended=1_001.0)
    await desk.until(1_019.9)
    assert desk.went[2:] == [(RETRY, b"3")], "what follows goes on"
    await desk.until(1_026.0)
    assert desk.went[3:] == [(DELAY, b"1")]
    again = desk.broker.sent[-1]
    assert desk.watermark.commit == 4
    assert 1_000 * 10 <= (again.until or 0) - 1_020_000 <= 16_000, "the longest rung within the time since it was due"
    assert dict(again.headers)["ackwise-due"] == b"1000000"


async def test_a_thousand_are_held_and_what_is_above_that_takes_a_rung_again_at_once() -> None:
    desk = Desk()
    desk.put(*range(1_500), due=1_000.0)
    desk.broker.answer = lambda copy: UNAVAILABLE if copy.topic == RETRY else None
    await desk.turn(1_010.0)
    assert desk.went == []
    await desk.until(1_012.0)
    assert {topic for topic, _ in desk.went} == {DELAY}
    assert len(desk.went) >= 500


async def test_while_no_partition_takes_anything_nothing_is_lost_and_nothing_is_committed() -> None:
    desk = Desk()
    desk.put(0, 1, due=1_000.0)
    desk.broker.answer = lambda copy: UNAVAILABLE
    await desk.until(1_100.0)
    assert (desk.went, desk.watermark.commit) == ([], 0)
    tries = desk.broker.log.count("publish 2")
    assert 15 <= tries <= 25, "with a back-off of five seconds at most"
    desk.broker.answer = lambda copy: None
    await desk.until(1_106.0)
    assert (len(desk.went), desk.watermark.commit) == (2, 2)


async def test_a_copy_of_another_version_goes_to_the_rung_of_ten_minutes_with_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    for version in (b"1", b"9"):
        caplog.clear()
        desk = Desk()
        desk.put(0, headers=(("ackwise-version", version), ("ackwise-group", b"billing"), ("ackwise-due", b"0")))
        desk.put(1)
        await desk.until(1_010.0)
        assert desk.went == [(DELAY, b"0"), (RETRY, b"1")]
        assert (desk.broker.sent[0].until, desk.watermark.commit) == (1_010_000 + 600_000, 2)
        assert caplog.text.count("start a worker of the Ackwise") == 1


async def test_a_record_that_is_not_ours_becomes_a_dead_letter_and_blocks_nobody() -> None:
    ours = (("ackwise-version", b"2"), ("ackwise-group", b"billing"))
    for headers in (
        (("trace", b"t"),),
        (("ackwise-version", b"x"),),
        (("ackwise-version", b"2"),),
        (("ackwise-version", b"2"), ("ackwise-due", b"3")),
        (*ours, ("ackwise-due", b"soon")),
        (*ours, ("ackwise-due", None)),
        (("ackwise-version", b"9"), ("ackwise-group", b"shipping"), ("ackwise-due", b"3")),
        (("\udcff", b"no UTF-8"), *ours, ("ackwise-due", b"3")),
        (*ours, ("ackwise-due", b"3"), ("ackwise-send-topic", b"no topic!"), ("message-id", b"1")),
    ):
        desk = Desk()
        desk.put(0, headers=headers)
        desk.put(1)
        await desk.until(1_010.0)
        assert sorted(desk.went) == [(LETTERS, b"0"), (RETRY, b"1")], headers
        assert desk.watermark.commit == 2
        letter = next(copy for copy in desk.broker.sent if copy.topic == LETTERS)
        said = dict(letter.headers[len(headers) :])
        assert (said["ackwise-reason"], said["ackwise-origin-topic"]) == (b"foreign-copy", b"billing.delay")


@pytest.mark.parametrize("name", ["x", "\udcff"])
async def test_a_record_that_is_not_ours_holds_no_rung_while_no_dead_letter_is_taken(name: str) -> None:
    desk = Desk()
    desk.put(0, headers=((name, b"1"),), value=b"foreign")
    desk.broker.answer = lambda copy: UNAVAILABLE if copy.topic == LETTERS else None
    await desk.until(1_030.0)
    assert (desk.went, desk.watermark.commit) == ([(DELAY, b"foreign")], 1)
    again = desk.broker.sent[0]
    assert 590_000 <= (again.until or 0) - 1_020_000 <= 610_000
    desk.broker.answer = lambda copy: None
    later = Desk(desk.broker, partition=RUNG[600])
    later.put(0, headers=again.headers, value=again.value)
    await later.until(1_600.0)
    assert (later.went[1:], later.watermark.commit) == ([(LETTERS, b"foreign")], 1)


async def test_a_copy_that_is_refused_for_good_becomes_a_dead_letter_that_is_cut_and_names_its_origin() -> None:
    desk = Desk()
    desk.put(0)
    desk.broker.answer = lambda copy: PublishRefused("too large") if copy.value is not None else None
    await desk.until(1_010.0)
    assert (desk.went, desk.watermark.commit) == ([(LETTERS, None)], 1)
    said = dict(desk.broker.sent[0].headers)
    assert (said["ackwise-reason"], said["ackwise-dropped"], said["ackwise-handler"]) == (b"too-large", b"value", b"bill")
    assert (said["ackwise-origin-topic"], said["ackwise-origin-offset"]) == (b"orders", b"100")


async def test_a_handler_name_that_fills_a_record_ends_as_a_dead_letter_that_fits() -> None:
    desk = Desk()
    desk.put(0, handler="h" * 900_000)
    desk.broker.answer = lambda copy: PublishRefused("large") if sum(len(value or b"") for _, value in copy.headers) > BUDGET else None
    await desk.until(1_010.0)
    assert (desk.went, desk.watermark.commit) == ([(LETTERS, None)], 1)
    assert dict(desk.broker.sent[0].headers)["ackwise-dropped"] == b"value headers"


async def test_a_dead_letter_that_can_t_be_cut_further_is_tried_again_and_not_dropped() -> None:
    desk = Desk()
    desk.put(0)
    desk.broker.answer = lambda copy: PublishRefused("never")
    await desk.until(1_100.0)
    assert (desk.went, desk.watermark.commit) == ([], 0)
    desk.broker.answer = lambda copy: None
    await desk.until(1_110.0)
    assert desk.watermark.commit == 1


async def test_a_due_time_beyond_max_delay_is_cut_once_written_on_alarmed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.put(0, 1, due=10**9)
    desk.put(2, due=1_101.0)
    await desk.until(1_010.0)
    assert desk.went == [(DELAY, b"0"), (DELAY, b"1"), (DELAY, b"2")]
    dues = [dict(copy.headers)["ackwise-due"] for copy in desk.broker.sent]
    assert dues == [b"1101000"] * 3
    assert desk.broker.sent[0].headers[0] == ("trace", b"t")
    assert (desk.counts.cut, caplog.text.count("due later than max_delay allows")) == (2, 1)


async def test_messages_that_were_to_be_sent_later_go_to_their_topics_and_hop_on_rungs_of_their_own() -> None:
    desk = Desk(partition=RUNG[10] + 13)
    desk.put(0, due=1_010.0, send_to="shop.orders")
    desk.put(1, due=1_060.0, send_to="shop.orders")
    await desk.until(1_010.0)
    (message,) = desk.broker.messages
    assert (message.topic, message.key, message.value, message.headers, message.message_id) == (
        "shop.orders", b"key", b"0", (("trace", b"t"),), "id-0",
    )  # fmt: skip
    (copy,) = desk.broker.sent
    assert (copy.topic, copy.is_send, copy.until, desk.watermark.commit) == (DELAY, True, 1_060_000, 2)


async def test_a_message_whose_topic_refuses_it_is_a_dead_letter_and_one_whose_topic_is_missing_once_it_is_overdue_by_max_delay() -> None:
    desk = Desk()
    desk.put(0, due=1_000.0, send_to="refusing")
    desk.put(1, due=1_000.0, send_to="nowhere")
    answers = {"refusing": SendFailed("too large", False, "MessageSizeTooLargeError"), "nowhere": SendFailed("missing", True, MISSING)}
    desk.broker.answer_of_send = lambda message: answers[message.topic]
    await desk.turn(1_010.0)
    assert (desk.went, desk.watermark.commit) == ([(LETTERS, b"0")], 1)
    assert dict(desk.broker.sent[0].headers)["ackwise-reason"] == b"send-refused"
    await desk.until(1_030.0)
    assert desk.went[1:] == [(DELAY, b"1")]
    late = Desk()
    late.put(1, due=905.0, send_to="nowhere")
    late.broker.answer_of_send = desk.broker.answer_of_send
    await late.until(1_010.0)
    assert late.went == [(LETTERS, b"1")], "overdue by the longest delay that may be asked for"
    assert dict(late.broker.sent[0].headers)["ackwise-reason"] == b"no-target"


async def test_a_copy_whose_retry_topic_is_missing_is_a_dead_letter_once_it_is_overdue(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.put(0, due=1_000.0)
    desk.broker.answer = lambda copy: TopicMissing("no such topic") if copy.topic == NAMES.retry else None
    await desk.until(1_030.0)
    assert desk.went == [(DELAY, b"0")]
    late = Desk()
    late.put(0, due=905.0)
    late.broker.answer = desk.broker.answer
    await late.until(1_010.0)
    assert (late.went, late.watermark.commit) == ([(LETTERS, b"0")], 1)
    assert dict(late.broker.sent[0].headers)["ackwise-reason"] == b"no-target"
    assert "target=billing.retry" in caplog.text


async def test_nothing_waits_for_a_target_that_does_not_answer_but_what_is_for_it() -> None:
    answers = asyncio.Event()

    class Away(Broker):
        async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
            if messages[0].topic == "away":
                await answers.wait()
            return await super().send_many(messages, stop_keys=stop_keys)

    desk = Desk(Away())
    desk.put(0, due=1_009.0, send_to="away")
    desk.put(1, due=1_009.0, send_to="there")
    desk.put(2, due=1_010.5)  # set aside
    desk.put(3, due=1_009.0)
    desk.put(4, due=1_070.0)  # hops on
    desk.now = 1_005.0
    desk.put(5)  # is looked at later
    turning = asyncio.create_task(desk.turn(1_010.0))
    await turns()
    assert ({*desk.went}, [each.topic for each in desk.broker.messages]) == ({(NAMES.retry, b"3"), (DELAY, b"4")}, ["there"])
    assert [run.first for run in sorted(desk.runs, key=lambda run: run.first)] == [2, 5], "these come up again though others are at work"
    answers.set()
    await turning
    await desk.until(1_020.0)
    assert (len(desk.went), desk.watermark.commit) == (4, 6)


async def test_after_the_cut_off_nothing_is_published() -> None:
    desk = Desk()
    desk.put(0, due=1_000.0)
    desk.cut_off = True
    await desk.turn(1_010.0)
    assert (desk.went, desk.watermark.commit) == ([], 0)
