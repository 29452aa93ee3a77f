"""The relay of an outbox beside the handlers of a worker, and how a relay is made of settings."""

from __future__ import annotations

import asyncio
from functools import partial

from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log
from ackwise.middleware.outbox import OutboxStore
from ackwise.middleware.policies import Outbox
from ackwise.plugin.checkback.checkback import CheckBack
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.outboxcounts import OutboxCounts
from ackwise.plugin.outbox.brokers import brokers_answer
from ackwise.plugin.outbox.relay import OutboxRelay
from ackwise.plugin.producer.sender import Sender, SenderSettings
from ackwise.plugin.settings.redaction import shown_store

__all__ = ["name_of_outbox", "new_relay", "relay_outbox"]

log = Log()


def relay_outbox(member: Member, stop: asyncio.Event) -> asyncio.Task[None] | None:
    """Begin the relay of the outbox of `member`, until `stop` is set; `None` if there is none, or if it runs apart.

    Half messages whose barrier is in that outbox are checked beside it, also where the relay runs apart.
    """
    store, policy = member.outbox, member.parts.outbox_policy
    if store is None or policy is None:
        return None
    member.spawn(CheckBack(store, name=name_of_outbox(policy), sink=member.sink, counts=member.check_counts).run(stop), "check-back")
    if policy.relay == "apart":
        log.info("this worker sends no rows of the outbox, they wait until ackwise relay MODULE:APP runs", group=member.settings.group)
        return None
    relay = new_relay(store, policy, member.settings, sink=member.sink, counts=member.outbox_counts)
    return member.spawn(relay.run(stop), "outbox relay")


def new_relay(
    store: OutboxStore,
    policy: Outbox,
    settings: SenderSettings,
    *,
    sink: EventSink | None,
    counts: OutboxCounts | None = None,
    is_alone: bool = False,
) -> OutboxRelay:
    """A relay that sends as `settings` say. `store` is open, and stays so."""
    return OutboxRelay(
        store,
        policy,
        name=name_of_outbox(policy),
        new_sender=partial(Sender, settings),
        brokers_answer=partial(brokers_answer, settings.brokers, settings.client_id, settings.client_options),
        sink=sink,
        counts=counts,
        is_alone=is_alone,
    )


def name_of_outbox(policy: Outbox) -> str:
    """What events and the log call an outbox: its URL without user, password and options, or the class of the object."""
    return shown_store(policy.store)
