"""Brokers: whether any of them answers, which tells an outage from a message that can't be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import AIOKafkaClient
from ackwise.plugin.client.opening import close_consumer, first_connection_closed

__all__ = ["brokers_answer"]

#: Seconds for the brokers to say who they are, and for the connection to close.
_ANSWER, _CLOSE = 5.0, 1.0


async def brokers_answer(brokers: str, client_id: str, options: Mapping[str, object]) -> bool:
    """Whether one of `brokers` says within a few seconds which brokers there are. Raises nothing of the client's."""
    given: dict[str, Any] = dict(options)
    client = AIOKafkaClient(bootstrap_servers=brokers, client_id=f"{client_id}-outbox", **given)
    try:
        with first_connection_closed():
            await answer(client.bootstrap(), within=_ANSWER)
    except Exception:  # noqa: BLE001  # whatever it was, nobody has answered
        return False
    finally:
        await close_consumer(client, within=_CLOSE)
    return True
