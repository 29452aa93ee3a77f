"""Ackwise: RocketMQ's consumption guarantees for Kafka consumers.

Names are loaded when they are first asked for, so that `import ackwise.spark` on a cluster needs no Kafka client. A public name is a
line of the block for type checkers, and nothing else.
"""

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ackwise.middleware.claims.receipts import Answer as Answer
    from ackwise.middleware.events import Event as Event
    from ackwise.middleware.events import EventCode as EventCode
    from ackwise.middleware.flow.breaker import Breaker as Breaker
    from ackwise.middleware.flow.limits import RateLimit as RateLimit
    from ackwise.middleware.message.batch import Batch as Batch
    from ackwise.middleware.message.disposition import CONSUME_LATER as CONSUME_LATER
    from ackwise.middleware.message.disposition import CONSUME_SUCCESS as CONSUME_SUCCESS
    from ackwise.middleware.message.disposition import ConsumeStatus as ConsumeStatus
    from ackwise.middleware.message.keys import DEFAULT_KEY as DEFAULT_KEY
    from ackwise.middleware.message.message import Message as Message
    from ackwise.middleware.message.outgoing import Acked as Acked
    from ackwise.middleware.message.outgoing import Outgoing as Outgoing
    from ackwise.middleware.message.outgoing import SendFailed as SendFailed
    from ackwise.middleware.message.outgoing import message_id as message_id
    from ackwise.middleware.message.raising import Later as Later
    from ackwise.middleware.message.raising import Reject as Reject
    from ackwise.middleware.policies.policies import Broadcasting as Broadcasting
    from ackwise.middleware.policies.policies import DeadLetter as DeadLetter
    from ackwise.middleware.policies.policies import Dedup as Dedup
    from ackwise.middleware.policies.policies import Events as Events
    from ackwise.middleware.policies.policies import Outbox as Outbox
    from ackwise.middleware.policies.policies import Share as Share
    from ackwise.middleware.policies.policies import Transactional as Transactional
    from ackwise.middleware.policies.policies import Watch as Watch
    from ackwise.middleware.policies.retry import ConsumeLater as ConsumeLater
    from ackwise.middleware.policies.retry import Exponential as Exponential
    from ackwise.middleware.policies.retry import Fixed as Fixed
    from ackwise.middleware.policies.retry import RetryInPlace as RetryInPlace
    from ackwise.middleware.policies.retry import Schedule as Schedule
    from ackwise.middleware.storage.outbox import Prepared as Prepared
    from ackwise.middleware.storage.outbox import TransactionOutcome as TransactionOutcome
    from ackwise.middleware.storage.outbox import Wait as Wait
    from ackwise.plugin.app import App as App
    from ackwise.plugin.faust.work import current_batch as current_batch
    from ackwise.plugin.handlers.tracing import Tracing as Tracing
    from ackwise.plugin.handlers.usermiddleware import CallNext as CallNext
    from ackwise.plugin.loop import reliable as reliable
    from ackwise.plugin.outbox.halfmessages import LocalTransaction as LocalTransaction
    from ackwise.plugin.outbox.transactionalproducer import TransactionalProducer as TransactionalProducer
    from ackwise.plugin.producer.producer import Producer as Producer
    from ackwise.plugin.producer.producer import Saved as Saved
    from ackwise.plugin.router import Router as Router
    from ackwise.plugin.simpleconsumer import Received as Received
    from ackwise.plugin.simpleconsumer import SimpleConsumer as SimpleConsumer

_SOURCE: Final = pkgutil.get_data(__name__, "__init__.py") or b""

#: Where each public name lives, as the block above says it. It is read, since nothing in it may be imported before it is asked for.
_HOMES: Final = {name: home for home, name in re.findall(r"^    from (\S+) import \w+ as (\w+)$", _SOURCE.decode(), re.MULTILINE)}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]  # it takes the names of the block


def __getattr__(name: str) -> object:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'ackwise' has no attribute {name!r}; its names are {', '.join(sorted(__all__))}") from None
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # asked for once only
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
