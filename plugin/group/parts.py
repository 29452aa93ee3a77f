"""Parts: the policies of a member, and what they keep things in. Made once, where the policies are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ackwise.middleware.events import EventSink
from ackwise.middleware.flowcontrol import FlowControl
from ackwise.middleware.outbox import OutboxStore
from ackwise.middleware.policies import DeadLetter, Dedup, Outbox, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import ClaimStore
from ackwise.middleware.transaction import TransactionalStore
from ackwise.plugin.lifespan import Lifespans
from ackwise.plugin.slots import Slots

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a member is made of, none of it open yet."""

    later: ConsumeLater
    dead_letter: DeadLetter
    dedup: Dedup | Transactional | None = None
    store: ClaimStore | None = None  #: that of `Dedup`
    inbox: TransactionalStore | None = None  #: that of `Transactional`
    outbox: OutboxStore | None = None  #: that of `Outbox`
    outbox_policy: Outbox | None = None
    sink: EventSink | None = None
    flow: FlowControl | None = None  #: what is paused and limited
    lifespans: Lifespans | None = None  #: open before anything else is, and until everything else is closed

    @classmethod
    def of(cls, slots: Slots, group: str, sources: Sequence[str]) -> Self:
        """What was used, for a member of `group` that reads `sources`. Raises `ConfigurationError`."""
        return cls(
            slots.later,
            slots.dead_letter,
            slots.dedup or slots.transactional,
            slots.open_store(),
            slots.open_inbox(),
            slots.open_outbox(),
            slots.outbox,
            slots.open_sink(group, sources),
            slots.flow_control(),
            slots.lifespans,
        )
