"""Handout: what a batch middleware gives to the handler of single messages, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import CONSUME_LATER, DONE, ConsumeStatus, Disposition
from ackwise.middleware.errors import InvalidHandlerResult, InvalidRuling
from ackwise.middleware.message import Message
from ackwise.middleware.rulings import dispositions_of
from ackwise.middleware.usercode import Called, Raised, Returned

__all__ = ["Handout"]

_PARTLY: Final = "a middleware gave call_next a part of its batch and returned no status; return CONSUME_SUCCESS to leave out the handler"


class Handout:
    """The messages of one call of a batch middleware, by their places in its batch.

    A success of the handler stands. A failure stands unless the middleware rules otherwise before it ends.
    """

    __slots__ = ("_handler", "_is_busy", "_shown", "batch", "failed", "given", "is_over")

    def __init__(self, messages: Sequence[Message[Any]], handler: str) -> None:
        self.batch = Batch(messages)
        self.failed: dict[int, Returned[Any] | Raised] = {}  #: what the handler failed with
        self.given: set[int] = set()  #: what the handler has had
        self.is_over = False  #: the middleware has ended
        self._handler = handler
        self._shown: dict[int, Disposition] = {}  #: what the batch says of them by itself
        self._is_busy = False

    @contextmanager
    def handling(self, given: Batch[Any]) -> Iterator[list[int]]:
        """With the places of those of `given` that are to be handled, which are neither done nor ruled on by the middleware.

        Their results are rulings of the batch afterwards. Raises `InvalidRuling` for what is not in the batch, and where it is too late.
        """
        if self.is_over or self._is_busy:
            raise InvalidRuling("call_next was called beside another call, or after its middleware had ended; wait for one after the other")
        places = [place for place in self._places(given) if not self.is_overruled(place) and self.batch.ruling(place) is not DONE]
        self.given.update(places)
        self._is_busy = True
        try:
            yield places
        finally:
            self._is_busy = False
            for place in self.failed.keys() & places:
                self._show(place, dispositions_of(self.alone(place), self.failed[place], handler=self._handler)[0])

    def status(self, given: Batch[Any]) -> ConsumeStatus | None:
        """What `call_next` returns: nothing if all of `given` are done."""
        return None if all(self.batch.ruling(place) is DONE for place in self._places(given)) else CONSUME_LATER

    def succeed(self, place: int) -> None:
        """The handler has succeeded, or need not run."""
        self.failed.pop(place, None)
        self._show(place, DONE)

    def forget(self, places: Sequence[int]) -> None:
        """The middleware did not wait for the handler: what has no result of its own takes that of the middleware."""
        self.given.difference_update(place for place in places if place not in self.failed and self._shown.get(place) is not DONE)

    def is_overruled(self, place: int) -> bool:
        """Whether the middleware ruled on the message itself."""
        return self.batch.ruling(place) is not self._shown.get(place)

    def alone(self, place: int) -> Batch[Any]:
        """The message in a batch of its own, which comes later as the batch says."""
        alone = Batch([self.batch[place]])
        alone.delay_level = self.batch.delay_level
        return alone

    def result_of_rest(self, result: Called | None) -> Called | None:
        """What `result` of the middleware means for what the handler has not had: that nothing was said is no success."""
        says_nothing = isinstance(result, Returned) and result.value is None and not self.batch.ack_index_was_set
        return Raised(InvalidHandlerResult(_PARTLY)) if says_nothing and self.given else result

    def _places(self, given: Batch[Any]) -> list[int]:
        return sorted({self.batch.position(message) for message in given})

    def _show(self, place: int, disposition: Disposition) -> None:
        if disposition is DONE or not self.is_overruled(place):
            self.batch.show(place, disposition)
            self._shown[place] = disposition
