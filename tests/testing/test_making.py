"""Messages and batches that a test makes."""

from __future__ import annotations

import pytest

from ackwise import Message
from ackwise.errors import ConfigurationError
from ackwise.testing import batch, message


def test_a_message_has_what_it_was_given_and_defaults_for_the_rest() -> None:
    made = message({"n": 1}, key="k", headers=[("h", b"v")], topic="orders", offset=7, attempt=3)
    assert (made.value, made.key_text, made.header("h")) == ({"n": 1}, "k", b"v")
    assert (made.topic, made.partition, made.offset, made.attempt, made.reconsume_times) == ("orders", 0, 7, 3, 2)
    assert (message(b"raw").raw, message("text").raw, message(1).attempt) == (b"raw", None, 1)


def test_a_batch_has_values_at_successive_offsets_and_takes_rulings() -> None:
    made = batch(["a", "b", message("c", offset=9)])
    assert [(each.value, each.offset) for each in made] == [("a", 0), ("b", 1), ("c", 9)]
    made.done(made[2])
    made.ack_index = 0
    assert (made.ack_index, sorted(made.rulings)) == (0, [2])


def test_an_attempt_below_the_first_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="attempt is 0; the first one is 1"):
        _: Message[int] = message(1, attempt=0)
