"""`Batch`: the messages that a handler gets together, and the rulings that it makes on them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import InvalidRuling
from ackwise.middleware.message.disposition import DONE, Dead, Delayed, Disposition, Reason
from ackwise.middleware.message.message import Message, Messages
from ackwise.middleware.usercode import plain, shown

T_co = TypeVar("T_co", covariant=True)


class Batch(Sequence[Message[T_co]], Generic[T_co]):
    """Messages of one partition, in order. Read-only but for the rulings.

    `ack_index = i` says that messages 0..i are done and the rest comes back later; it starts at "all". It counts only
    when the handler returns success. `delay_level` says how late the rest comes back, and what `later` is given neither
    delay nor level for: 0 lets the retry policy decide, n is that level, below 0 means dead letter. `done`, `later` and
    `dead` rule on single messages; they win over the prefix and survive an exception. Source: RocketMQ
    `ConsumeConcurrentlyContext`.
    """

    __slots__ = ("_ack_index", "_as_the_batch", "_delay_level", "_index", "_messages", "_rulings", "connection")

    connection: Any
    """What to write through under `Transactional`, in the transaction that marks these messages as done: a driver's
    connection or a session. Neither commit it nor roll it back. `None` without that policy."""

    def __init__(self, messages: Sequence[Message[T_co]]) -> None:
        if not isinstance(messages, Messages):
            given = tuple(messages)
            messages = Messages(len(given), lambda: given)
        self._messages = messages
        self._index: dict[int, int] = {}  #: by identity; made when the first message is ruled on
        self._rulings: dict[int, Disposition | None] = {}  #: `None`: later, at the level of the batch, which may yet be set
        self._as_the_batch = Delayed()
        self._ack_index: int | None = None
        self._delay_level = 0
        self.connection = None

    @overload
    def __getitem__(self, index: int) -> Message[T_co]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message[T_co], ...]: ...
    def __getitem__(self, index: int | slice) -> Message[T_co] | tuple[Message[T_co], ...]:
        return self._messages[index]

    def take_back(self) -> None:
        """Ignored: a handler has it already, so it can't be taken back."""

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message[T_co]]:
        return iter(self._messages.all)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} from {self._messages[0].topic}/{self._messages[0].partition}>" if self._messages else "<Batch of 0>"

    @property
    def messages(self) -> tuple[Message[T_co], ...]:
        """The messages as a tuple."""
        return self._messages.all

    @property
    def ack_index(self) -> int:
        """The last index of the prefix that is done; -1 for none. Above the last index it is clamped.

        Setting anything but a whole number from -1 raises `InvalidRuling`.
        """
        return len(self) - 1 if self._ack_index is None else min(self._ack_index, len(self) - 1)

    @ack_index.setter
    def ack_index(self, index: int) -> None:
        number: Any = plain(index)
        if type(number) is not int or number < -1:
            raise InvalidRuling(
                f"ack_index was set to {shown(index, repr)}; it is the index of the last message that is done, or -1 for none"
            )
        self._ack_index = number

    @property
    def ack_index_was_set(self) -> bool:
        """Return whether the handler set `ack_index`; after an exception only a prefix that was set counts."""
        return self._ack_index is not None

    @property
    def delay_level(self) -> int:
        """How late messages come back for which nothing else was said. Setting anything but a whole number raises `InvalidRuling`."""
        return self._delay_level

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        self._delay_level = _level(level)
        self._as_the_batch = Delayed(self._delay_level)

    def done(self, message: Message[object]) -> None:
        """This message is done. Raises `InvalidRuling` if it is not in the batch."""
        self._set_ruling(message, DONE)

    def later(self, message: Message[object], *, delay: float | str | None = None, delay_level: int | None = None) -> None:
        """Consume this message again: after `delay` (seconds, or a text such as `"5m"`), at `delay_level`, or as the batch says.

        Raises `InvalidRuling` if it is not in the batch or both are given, `ConfigurationError` for an unreadable delay.
        """
        if delay is not None and delay_level is not None:
            raise InvalidRuling("later() was given both delay and delay_level; give one of them")
        if delay is None and delay_level is None:
            self._set_ruling(message, None)
            return
        seconds = None if delay is None else parse_duration(delay, what="delay of later()")
        self._set_ruling(message, Delayed(0 if delay_level is None else _level(delay_level), seconds))

    def dead(self, message: Message[object], reason: str = Reason.REJECTED) -> None:
        """This message is a dead letter, for `reason`. Raises `InvalidRuling` if it is not in the batch."""
        text: Any = plain(reason)
        if type(text) is not str or not text:
            raise InvalidRuling(f"dead() was given {shown(reason, repr)} as its reason; give a short text")
        self._set_ruling(message, Dead(text))

    @property
    def is_ruled(self) -> bool:
        """Return whether the handler said anything of its messages, beside what it returned or raised."""
        return bool(self._rulings) or self._ack_index is not None

    @property
    def rulings(self) -> dict[int, Disposition]:
        """Return the rulings on single messages, by index."""
        return {index: ruling or self._as_the_batch for index, ruling in self._rulings.items()}

    def ruling(self, index: int) -> Disposition | None:
        """Return the ruling on the message at `index` alone, if any."""
        return (self._rulings[index] or self._as_the_batch) if index in self._rulings else None

    def position(self, message: Message[object]) -> int:
        """The index of `message`, in the time of one look-up. Raises `InvalidRuling` if it is not in the batch."""
        self._index = self._index or {id(message): index for index, message in enumerate(self._messages)}
        index = self._index.get(id(message))
        if index is None:
            raise InvalidRuling(f"{shown(message, repr)} is not in this batch of {len(self)}; rule on the messages that the batch holds")
        return index

    def show(self, index: int, disposition: Disposition) -> None:
        """Record the disposition of the message at `index`: it counts until another ruling is made."""
        self._rulings[index] = disposition

    def part(self, places: Sequence[int]) -> Batch[T_co]:
        """The messages at `places`, in order, with what was ruled on them."""
        part = Batch([self[place] for place in places])
        part._rulings = {index: self._rulings[place] for index, place in enumerate(places) if place in self._rulings}
        part._ack_index = None if self._ack_index is None else bisect_right(places, self._ack_index) - 1
        part.delay_level = self._delay_level
        return part

    def _set_ruling(self, message: Message[object], disposition: Disposition | None) -> None:
        self._rulings[self.position(message)] = disposition


def _level(level: int) -> int:
    number: Any = plain(level)
    if type(number) is not int:
        raise InvalidRuling(
            f"delay_level was set to {shown(level, repr)}; 0 lets the policy decide, n is that level, below 0 is a dead letter"
        )
    return int(number)
