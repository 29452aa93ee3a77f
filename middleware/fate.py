"""From a disposition to what it means for this message: how late it comes back, or that it came too often."""

from __future__ import annotations

import logging

from ackwise.middleware.disposition import Dead, Disposition, Done, Later
from ackwise.middleware.entry import Entry
from ackwise.middleware.retry import ConsumeLater, SendBack

__all__ = ["decide"]

log = logging.getLogger("ackwise")


def decide(entry: Entry, disposition: Disposition, policy: ConsumeLater, error: BaseException | None = None) -> None:
    """Rule on `entry`: what shall come later is sent back as `policy` says, or is a dead letter if it came too often."""
    match disposition:
        case Done():
            entry.succeeded = True
        case Later(failure=failure):
            entry.error = failure.error if failure is not None else "CONSUME_LATER"
            decision = _decision(disposition, policy, entry, error)
            if isinstance(decision, SendBack):
                entry.send_back = decision
            else:
                disposition = decision
        case Dead(reason, failure):
            entry.error = failure.error if failure is not None else reason
        case _:
            pass
    entry.rule(disposition)


def _decision(later: Later, policy: ConsumeLater, entry: Entry, error: BaseException | None) -> SendBack | Dead:
    reconsume_times = entry.delivery.attempt - 1
    try:
        return policy.decide(later, reconsume_times, error)
    except Exception as broken:  # noqa: BLE001  # a retry policy may be the user's: the delay levels stand in for it
        log.error("the retry policy raised %r; %s comes back by delay level", broken, entry.delivery.origin)
        return policy.by_level(reconsume_times)
