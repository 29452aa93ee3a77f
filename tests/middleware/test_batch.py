"""What a handler may say about a batch, and what the batch refuses to take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError, InvalidRuling
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import DONE, Dead, Delayed
from ackwise.middleware.message.message import Delivery, Message, Origin


def batch_of(size: int) -> Batch[int]:
    return Batch([Message(Delivery("orders", 3, 100 + i, 0, None, b"", (), Origin("orders", 3, 100 + i, 0)), i) for i in range(size)])


def test_a_batch_is_a_sequence_of_its_messages_in_order() -> None:
    batch = batch_of(5)
    assert len(batch) == 5
    assert [message.offset for message in batch] == [100, 101, 102, 103, 104]
    assert batch[0] is batch.messages[0]
    assert batch[-1] is batch.messages[4]
    assert batch[1:3] == batch.messages[1:3]
    assert batch[::-1] == batch.messages[::-1]
    assert batch[2] in batch
    with pytest.raises(IndexError):
        batch[5]


def test_a_batch_says_where_it_comes_from() -> None:
    assert repr(batch_of(5)) == "<Batch of 5 from orders/3>"
    assert repr(batch_of(0)) == "<Batch of 0>"


@each(
    "mutate",
    [
        lambda batch: batch.__setitem__(0, batch[1]),
        lambda batch: batch.__delitem__(0),
        lambda batch: batch.append(batch[0]),
        lambda batch: batch.pop(),
        lambda batch: batch.messages.append(batch[0]),
        lambda batch: setattr(batch, "messages", ()),
        lambda batch: setattr(batch, "ack_indx", 1),
    ],
    ids=["set", "delete", "append", "pop", "append to messages", "replace messages", "misspell ack_index"],
)
def test_a_batch_is_read_only(mutate: Callable[[Batch[int]], object]) -> None:
    batch = batch_of(2)
    with pytest.raises((AttributeError, TypeError)):
        mutate(batch)
    assert [message.offset for message in batch] == [100, 101]


def test_a_batch_does_not_follow_the_list_that_it_was_made_from() -> None:
    messages = list(batch_of(3))
    batch = Batch(messages)
    messages.clear()
    assert len(batch) == 3


def test_the_ack_index_starts_at_all() -> None:
    assert batch_of(5).ack_index == 4
    assert not batch_of(5).ack_index_was_set
    assert batch_of(0).ack_index == -1


@each(("given", "read"), [(-1, -1), (0, 0), (4, 4), (5, 4), (99, 4)])
def test_an_ack_index_above_the_last_message_is_clamped(given: int, read: int) -> None:
    batch = batch_of(5)
    batch.ack_index = given
    assert batch.ack_index == read
    assert batch.ack_index_was_set


@each("given", [-2, -3, True, False, 1.0, 2.5, float("nan"), "1", None])
def test_an_ack_index_that_is_no_index_is_refused_when_it_is_set(given: object) -> None:
    batch = batch_of(5)
    batch.ack_index = 2
    with pytest.raises(InvalidRuling, match="ack_index was set to"):
        batch.ack_index = given  # type: ignore[assignment]  # what a handler may do all the same
    assert batch.ack_index == 2


@each("given", [True, 1.0, "3", None])
def test_a_delay_level_that_is_no_whole_number_is_refused(given: object) -> None:
    batch = batch_of(1)
    with pytest.raises(InvalidRuling, match="delay_level was set to"):
        batch.delay_level = given  # type: ignore[assignment]  # what a handler may do all the same
    assert batch.delay_level == 0


def test_a_delay_and_a_delay_level_together_are_refused() -> None:
    batch = batch_of(1)
    with pytest.raises(InvalidRuling, match="both delay and delay_level"):
        batch.later(batch[0], delay=1, delay_level=1)
    assert batch.ruling(0) is None


def test_a_ruling_is_kept_for_its_message_and_the_last_one_counts() -> None:
    batch = batch_of(4)
    batch.done(batch[0])
    batch.later(batch[1], delay="5m")
    batch.later(batch[2], delay_level=3)
    batch.done(batch[3])
    batch.dead(batch[3], "no such customer")
    assert [batch.ruling(index) for index in range(4)] == [DONE, Delayed(delay=300.0), Delayed(delay_level=3), Dead("no such customer")]


def test_a_ruling_on_a_message_of_another_batch_is_refused() -> None:
    batch, other = batch_of(2), batch_of(2)
    for rule in (batch.done, batch.later, batch.dead):
        with pytest.raises(InvalidRuling, match="is not in this batch of 2"):
            rule(other[0])
    assert batch.ruling(0) is None


def test_a_message_of_a_slice_is_still_in_the_batch() -> None:
    batch = batch_of(3)
    batch.done(batch[1:][0])
    assert batch.ruling(1) == DONE


def test_a_delay_that_is_none_is_refused() -> None:
    batch = batch_of(1)
    with pytest.raises(ConfigurationError, match=r"delay of later\(\)"):
        batch.later(batch[0], delay=-1)
    assert batch.ruling(0) is None


@each("reason", ["", None, 5])
def test_a_dead_letter_needs_a_reason(reason: object) -> None:
    batch = batch_of(1)
    with pytest.raises(InvalidRuling, match="give a short text"):
        batch.dead(batch[0], reason)  # type: ignore[arg-type]  # what a handler may do all the same
