"""When a copy moves on from a rung of the delay topic: never early, late by little, in few hops, whatever the clocks and the rungs."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackwise.middleware.policies.delaytopic import Ladder, Rung, ladder_of, wait_of
from ackwise.plugin.delays.nexthop import Aside, Go, Hop, cut_due, is_given_up, look_at, next_hop

WHOLE = ladder_of(27)

SECOND, DAY = 1_000, 86_400_000

#: Milliseconds that every writer adds, as `clock_skew` is by default.
SKEW = 500


def hop(now: int, due: int, *, seen: int = -DAY, ladder: Ladder = WHOLE, has_room: bool = True) -> Go | Aside | Hop:
    return next_hop(now, due, seen=seen, ladder=ladder, sends=False, has_room=has_room)


def test_a_head_is_looked_at_when_its_wait_is_over_and_never_later() -> None:
    assert look_at(100_000, 150_000, 10) == 110_000
    assert look_at(10**12, 150_000, 10) == 160_000, "a clock that is ahead"
    assert look_at(-1, 150_000, 10) == 160_000, "no timestamp"


def test_a_copy_goes_to_its_target_is_set_aside_or_takes_the_next_rung() -> None:
    for what, found, expected in (
        ("due", hop(10_000, 10_000), Go()),
        ("a millisecond early", hop(9_999, 10_000), Aside(10_000)),
        ("less than a second left", hop(0, 999), Aside(999)),
        ("a second left", hop(0, 1_000), Hop(Rung(1, (3,)))),
        ("75 s left", hop(0, 75_000), Hop(Rung(60, (2,)))),
        ("no room for what is left", hop(0, 999, has_room=False), Hop(Rung(1, (3,)))),
        ("less than the shortest rung that there is", hop(0, 9_499, ladder=ladder_of(2)), Aside(9_499)),
        ("that, without room", hop(0, 9_499, ladder=ladder_of(2), has_room=False), Hop(Rung(10, (1,)))),
        ("as much as the shortest rung", hop(0, 9_500, ladder=ladder_of(2)), Hop(Rung(10, (1,)))),
        ("seen a moment ago", hop(0, 75_000, seen=-200), Aside(800)),
        ("seen a moment ago, and no room", hop(0, 75_000, seen=-200, has_room=False), Hop(Rung(60, (2,)))),
    ):
        assert found == expected, what


def test_a_copy_whose_target_does_not_exist_is_given_up_once_it_is_overdue_by_the_longest_delay() -> None:
    assert (is_given_up(0, 3 * DAY - 1, 259_200.0), is_given_up(0, 3 * DAY, 259_200.0)) == (False, True)


@given(
    delay=st.integers(0, 3 * DAY),
    sent=st.integers(0, 2**41),
    sender_ahead=st.integers(0, 500),
    relay_ahead=st.integers(0, 500),
    seen_after=st.integers(0, DAY),
    sent_again_after=st.integers(0, DAY),
    is_append_time=st.booleans(),
)
def test_a_delay_that_was_asked_for_by_the_rules_is_never_cut(
    delay: int, sent: int, sender_ahead: int, relay_ahead: int, seen_after: int, sent_again_after: int, is_append_time: bool
) -> None:
    """Clocks differ by `clock_skew` at most; publishing may have to be repeated for long, with the due time of the first time."""
    due, written = sent + sender_ahead + delay + SKEW, sent + sent_again_after
    timestamp = written if is_append_time else written - DAY
    seen = written + seen_after + relay_ahead
    assert cut_due(due, timestamp, seen, max_delay=259_200.0, clock_skew=0.5, is_append_time=is_append_time) == due


def test_a_due_beyond_the_longest_delay_is_cut_by_the_broker_s_clock_or_else_by_the_first_sight() -> None:
    for timestamp, is_append_time, expected in ((5_000, True, 106_000), (5_000, False, 121_000), (-1, True, 121_000)):
        assert cut_due(10**12, timestamp, 20_000, max_delay=100.0, clock_skew=0.5, is_append_time=is_append_time) == expected


class Clocks(NamedTuple):
    """Milliseconds by which clocks are ahead of the true time."""

    writer: int = 0
    broker: int = 0
    relay: int = 0


class Journey(NamedTuple):
    """When a copy came back, in true milliseconds since it was sent; what it took; and the hops with the times between them."""

    arrived: int
    hops: int
    slow: int  #: the relay's own delay at its last two steps


def travel(delay: int, ladder: Ladder, clocks: Clocks, draw: random.Random, *, slowest: int = 0, shy: float = 0.0) -> Journey:
    """A copy that is to be back after `delay`. Each step of the relay is late by up to `slowest`; with a chance of `shy` it has no room."""
    true, hops, slow = 0, 1, [0, 0]

    def later() -> int:
        slow.append(draw.randint(0, slowest))
        return slow[-1]

    due = clocks.writer + delay + SKEW
    rung = ladder.rung((due - clocks.writer) / 1000)
    while True:
        appended, partition = true + clocks.broker, draw.choice(rung.partitions)
        true += later()
        seen = true + clocks.relay
        true = max(true, look_at(appended, seen, wait_of(partition)) - clocks.relay) + later()
        while True:
            now = true + clocks.relay
            found = next_hop(now, due, seen=seen, ladder=ladder, sends=False, has_room=draw.random() >= shy)
            if isinstance(found, Aside):
                assert found.until > now
                true = found.until - clocks.relay + later()
                continue
            break
        if isinstance(found, Go):
            return Journey(true, hops, slow[-1] + slow[-2])
        rung, hops = found.rung, hops + 1
        assert hops < 10_000


def journeys(number: int, seed: int) -> None:
    """Never early, late by half a second and the relay's own delay, in at most 22 hops and one for each delay of the relay's own."""
    draw = random.Random(seed)
    for _ in range(number):
        delay = int(10 ** draw.uniform(0, 8.4136))  # up to three days, and as many short ones as long ones
        clocks = Clocks(*(draw.randint(-SKEW // 2, SKEW // 2) for _ in range(3)))
        slowest = draw.choice((0, 0, 10, 300))
        found = travel(delay, WHOLE, clocks, draw, slowest=slowest)
        late = found.arrived - delay - SKEW
        assert found.arrived >= delay, "early"
        assert late <= 500 + found.slow + max(0, clocks.writer - clocks.relay), (delay, clocks, late)
        if slowest == 0 and clocks == Clocks():
            assert found.hops <= 22


def test_simulated_delays_are_never_early_and_late_by_half_a_second_and_the_relay_s_own_delay() -> None:
    """D04"""
    journeys(4_000, seed=1)


@pytest.mark.nightly
@pytest.mark.slow  # two hundred thousand of them
def test_two_hundred_thousand_simulated_delays() -> None:
    journeys(200_000, seed=2)


@given(delay=st.integers(1, 3 * DAY), seed=st.integers(0, 2**32))
def test_with_clocks_that_agree_no_delay_takes_more_than_22_hops(delay: int, seed: int) -> None:
    assert travel(delay, WHOLE, Clocks(), random.Random(seed)).hops <= 22


@given(
    delay=st.integers(1, 600 * SECOND),
    partitions=st.integers(2, 60),
    broker=st.integers(-DAY, DAY),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_broker_s_clock_and_the_rungs_a_copy_comes_back_and_hops_once_a_second_at_most(
    delay: int, partitions: int, broker: int, seed: int
) -> None:
    ladder = ladder_of(partitions)
    found = travel(delay, ladder, Clocks(broker=broker), random.Random(seed), slowest=20)
    assert delay <= found.arrived
    assert found.hops <= 2 + found.arrived / 1000
    if broker >= 0:
        too_long = max(0, ladder.shortest * 1000 - delay) if delay < (ladder.shortest - 0.5) * 1000 else 0
        assert found.arrived - delay - SKEW <= 500 + found.slow + too_long + 20


@given(delay=st.integers(1, 100 * SECOND), shy=st.sampled_from([0.5, 1.0]), seed=st.integers(0, 2**32))
def test_without_room_in_memory_a_copy_is_late_by_its_shortest_rung_and_never_early(delay: int, shy: float, seed: int) -> None:
    found = travel(delay, WHOLE, Clocks(), random.Random(seed), slowest=20, shy=shy)
    assert delay <= found.arrived <= delay + SKEW + 1_000 + found.slow + 20
