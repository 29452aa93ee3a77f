"""`MappedRows`: the changes of any table, which a function of the user makes messages of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ackwise.middleware.changes import Change, UnreadableChange
from ackwise.middleware.errors import AckwiseError, PublishRefused
from ackwise.middleware.keys import refuse_async
from ackwise.middleware.outgoing import Acked, Outgoing, SendFailed
from ackwise.middleware.tracebacks import where_raised
from ackwise.middleware.usercode import Returned, Stops, called, class_name, close_coroutine, is_a
from ackwise.plugin.cdc.route import Aside, Parcel, Verdict

__all__ = ["Mapping", "MappedRows"]

Mapping = Callable[[Change], Outgoing | None]
"""What to send for a change; `None`: nothing. The relay gives it the change's id."""


class MappedRows:
    """The route of tables that are no outbox. What can't be sent stops the relay, since there is no row to park."""

    def __init__(self, mapping: Mapping) -> None:
        refuse_async(mapping, "the function that maps changes")
        self._mapping = mapping

    async def open(self) -> None:
        """Nothing to do."""

    async def begin(self) -> None:
        """Nothing to do."""

    async def keep(self) -> bool:
        """There is no table to look into."""
        return False

    def judge(self, change: Change) -> Verdict:
        """What the function says. Raises `UnreadableChange` with where it raised; never with what, which may be of a row."""
        outcome = called(self._mapping, change)
        if not isinstance(outcome, Returned):
            error = outcome.error
            if isinstance(outcome, Stops) or is_a(error, AckwiseError):
                raise error
            raise UnreadableChange(
                f"{self._name} raised {class_name(error)} at {where_raised(error)} for change {change.number} of {change.table}, "
                f"committed at {change.position}; nothing from there on is sent: correct it, and start again"
            ) from error
        made = outcome.value
        if made is None:
            return Aside.NOTHING
        if not is_a(made, Outgoing):
            close_coroutine(made)
            raise UnreadableChange(
                f"{self._name} returned {class_name(made)} for a change of {change.table}; return an Outgoing, or None to send nothing"
            )
        return Parcel(dataclasses.replace(made, message_id=change.id), change.position)

    async def waiting(self) -> Sequence[Parcel]:
        """Nothing waits: what was there before the slot is not sent."""
        return ()

    async def unheld(self, parcels: Sequence[Parcel]) -> Sequence[Parcel]:
        """All of them."""
        return parcels

    async def sent(self, sent: Sequence[tuple[Parcel, Acked]]) -> None:
        """Nothing to do: the position is all that is kept."""

    async def refuse(self, parcel: Parcel, failure: SendFailed) -> None:
        """Raise `PublishRefused`."""
        raise PublishRefused(
            f"{failure.cause}: message {parcel.message.message_id}, committed at {parcel.position}; nothing from there on is sent. "
            f"Let the topic take it, or let {self._name} return None for it, and start again"
        )

    async def end(self) -> None:
        """Nothing to do."""

    @property
    def _name(self) -> str:
        return f"{getattr(self._mapping, '__module__', '?')}:{getattr(self._mapping, '__qualname__', type(self._mapping).__name__)}"
