"""Ackwise: RocketMQ's consumption guarantees for Kafka consumers.

Names are loaded when they are first asked for, so that `import ackwise.spark` on a cluster needs no Kafka client.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackwise.middleware.batch import Batch as Batch
    from ackwise.middleware.breaker import Breaker as Breaker
    from ackwise.middleware.disposition import CONSUME_LATER as CONSUME_LATER
    from ackwise.middleware.disposition import CONSUME_SUCCESS as CONSUME_SUCCESS
    from ackwise.middleware.disposition import ConsumeStatus as ConsumeStatus
    from ackwise.middleware.errors import AckwiseError as AckwiseError
    from ackwise.middleware.errors import CodecUnavailable as CodecUnavailable
    from ackwise.middleware.errors import ConfigurationError as ConfigurationError
    from ackwise.middleware.errors import EventLogUnavailable as EventLogUnavailable
    from ackwise.middleware.errors import InvalidHandlerResult as InvalidHandlerResult
    from ackwise.middleware.errors import InvalidReceipt as InvalidReceipt
    from ackwise.middleware.errors import InvalidRuling as InvalidRuling
    from ackwise.middleware.errors import PublishRefused as PublishRefused
    from ackwise.middleware.errors import PublishUnavailable as PublishUnavailable
    from ackwise.middleware.errors import StoreUnavailable as StoreUnavailable
    from ackwise.middleware.errors import TransactionAborted as TransactionAborted
    from ackwise.middleware.errors import Unavailable as Unavailable
    from ackwise.middleware.events import Event as Event
    from ackwise.middleware.events import EventCode as EventCode
    from ackwise.middleware.limits import RateLimit as RateLimit
    from ackwise.middleware.message import Message as Message
    from ackwise.middleware.ordering import RetryInPlace as RetryInPlace
    from ackwise.middleware.outbox import Prepared as Prepared
    from ackwise.middleware.outbox import TransactionOutcome as TransactionOutcome
    from ackwise.middleware.outgoing import Acked as Acked
    from ackwise.middleware.outgoing import Outgoing as Outgoing
    from ackwise.middleware.outgoing import SendFailed as SendFailed
    from ackwise.middleware.outgoing import message_id as message_id
    from ackwise.middleware.policies import Broadcasting as Broadcasting
    from ackwise.middleware.policies import DeadLetter as DeadLetter
    from ackwise.middleware.policies import Dedup as Dedup
    from ackwise.middleware.policies import Events as Events
    from ackwise.middleware.policies import Outbox as Outbox
    from ackwise.middleware.policies import Transactional as Transactional
    from ackwise.middleware.raising import Later as Later
    from ackwise.middleware.raising import Reject as Reject
    from ackwise.middleware.receiving import Answer as Answer
    from ackwise.middleware.retry import ConsumeLater as ConsumeLater
    from ackwise.middleware.retry import Exponential as Exponential
    from ackwise.middleware.retry import Fixed as Fixed
    from ackwise.middleware.retry import Schedule as Schedule
    from ackwise.middleware.share import Share as Share
    from ackwise.middleware.watch import Watch as Watch
    from ackwise.plugin.app import App as App
    from ackwise.plugin.around import CallNext as CallNext
    from ackwise.plugin.faust.work import current_batch as current_batch
    from ackwise.plugin.loop import Reliable as Reliable
    from ackwise.plugin.loop import reliable as reliable
    from ackwise.plugin.loopbatch import LoopBatch as LoopBatch
    from ackwise.plugin.producer.producer import Producer as Producer
    from ackwise.plugin.producer.producer import Saved as Saved
    from ackwise.plugin.router import Router as Router
    from ackwise.plugin.running import Running as Running
    from ackwise.plugin.schemas.avro import Avro as Avro
    from ackwise.plugin.schemas.jsonschema import JsonSchema as JsonSchema
    from ackwise.plugin.schemas.protobuf import Protobuf as Protobuf
    from ackwise.plugin.schemas.schemaregistry import SchemaRegistry as SchemaRegistry
    from ackwise.plugin.simple.consumer import SimpleConsumer as SimpleConsumer
    from ackwise.plugin.simple.received import Received as Received
    from ackwise.plugin.tracing import Tracing as Tracing
    from ackwise.plugin.transactions.localtransaction import LocalTransaction as LocalTransaction
    from ackwise.plugin.transactions.producer import TransactionalProducer as TransactionalProducer

__all__ = [
    "App",
    "Router",
    "CallNext",
    "current_batch",
    "reliable",
    "Reliable",
    "LoopBatch",
    "Running",
    "SimpleConsumer",
    "Received",
    "Answer",
    "Producer",
    "Outgoing",
    "Acked",
    "Saved",
    "SendFailed",
    "message_id",
    "SchemaRegistry",
    "Avro",
    "JsonSchema",
    "Protobuf",
    "TransactionalProducer",
    "LocalTransaction",
    "TransactionOutcome",
    "Prepared",
    "Batch",
    "Message",
    "ConsumeLater",
    "RetryInPlace",
    "DeadLetter",
    "Dedup",
    "Transactional",
    "Outbox",
    "Events",
    "Breaker",
    "RateLimit",
    "Broadcasting",
    "Share",
    "Watch",
    "Tracing",
    "Event",
    "EventCode",
    "Exponential",
    "Fixed",
    "Schedule",
    "Later",
    "Reject",
    "ConsumeStatus",
    "CONSUME_SUCCESS",
    "CONSUME_LATER",
    "AckwiseError",
    "CodecUnavailable",
    "ConfigurationError",
    "EventLogUnavailable",
    "InvalidHandlerResult",
    "InvalidReceipt",
    "InvalidRuling",
    "PublishRefused",
    "PublishUnavailable",
    "StoreUnavailable",
    "TransactionAborted",
    "Unavailable",
]

_HOMES = {
    "App": "ackwise.plugin.app",
    "Router": "ackwise.plugin.router",
    "CallNext": "ackwise.plugin.around",
    "current_batch": "ackwise.plugin.faust.work",
    "reliable": "ackwise.plugin.loop",
    "Reliable": "ackwise.plugin.loop",
    "LoopBatch": "ackwise.plugin.loopbatch",
    "Running": "ackwise.plugin.running",
    "SimpleConsumer": "ackwise.plugin.simple.consumer",
    "Received": "ackwise.plugin.simple.received",
    "Answer": "ackwise.middleware.receiving",
    "Producer": "ackwise.plugin.producer.producer",
    "Outgoing": "ackwise.middleware.outgoing",
    "Acked": "ackwise.middleware.outgoing",
    "Saved": "ackwise.plugin.producer.producer",
    "SendFailed": "ackwise.middleware.outgoing",
    "message_id": "ackwise.middleware.outgoing",
    "SchemaRegistry": "ackwise.plugin.schemas.schemaregistry",
    "Avro": "ackwise.plugin.schemas.avro",
    "JsonSchema": "ackwise.plugin.schemas.jsonschema",
    "Protobuf": "ackwise.plugin.schemas.protobuf",
    "TransactionalProducer": "ackwise.plugin.transactions.producer",
    "LocalTransaction": "ackwise.plugin.transactions.localtransaction",
    "TransactionOutcome": "ackwise.middleware.outbox",
    "Prepared": "ackwise.middleware.outbox",
    "Batch": "ackwise.middleware.batch",
    "Message": "ackwise.middleware.message",
    "ConsumeLater": "ackwise.middleware.retry",
    "RetryInPlace": "ackwise.middleware.ordering",
    "DeadLetter": "ackwise.middleware.policies",
    "Dedup": "ackwise.middleware.policies",
    "Events": "ackwise.middleware.policies",
    "Breaker": "ackwise.middleware.breaker",
    "RateLimit": "ackwise.middleware.limits",
    "Broadcasting": "ackwise.middleware.policies",
    "Transactional": "ackwise.middleware.policies",
    "Outbox": "ackwise.middleware.policies",
    "Share": "ackwise.middleware.share",
    "Watch": "ackwise.middleware.watch",
    "Tracing": "ackwise.plugin.tracing",
    "Event": "ackwise.middleware.events",
    "EventCode": "ackwise.middleware.events",
    "Exponential": "ackwise.middleware.retry",
    "Fixed": "ackwise.middleware.retry",
    "Schedule": "ackwise.middleware.retry",
    "Later": "ackwise.middleware.raising",
    "Reject": "ackwise.middleware.raising",
    "ConsumeStatus": "ackwise.middleware.disposition",
    "CONSUME_SUCCESS": "ackwise.middleware.disposition",
    "CONSUME_LATER": "ackwise.middleware.disposition",
    "AckwiseError": "ackwise.middleware.errors",
    "CodecUnavailable": "ackwise.middleware.errors",
    "ConfigurationError": "ackwise.middleware.errors",
    "EventLogUnavailable": "ackwise.middleware.errors",
    "InvalidHandlerResult": "ackwise.middleware.errors",
    "InvalidReceipt": "ackwise.middleware.errors",
    "InvalidRuling": "ackwise.middleware.errors",
    "PublishRefused": "ackwise.middleware.errors",
    "PublishUnavailable": "ackwise.middleware.errors",
    "StoreUnavailable": "ackwise.middleware.errors",
    "TransactionAborted": "ackwise.middleware.errors",
    "Unavailable": "ackwise.middleware.errors",
}
"""Where each public name lives. A new name is added here, in `__all__` and in the block for type checkers; a test compares the three."""


def __getattr__(name: str) -> object:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'ackwise' has no attribute {name!r}; its names are {', '.join(__all__)}") from None
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # asked for once only
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
