"""Errors that Ackwise raises, in one tree whose root is `AckwiseError`."""

from ackwise.middleware.errors import AckwiseError as AckwiseError
from ackwise.middleware.errors import CodecUnavailable as CodecUnavailable
from ackwise.middleware.errors import ConfigurationError as ConfigurationError
from ackwise.middleware.errors import EventLogUnavailable as EventLogUnavailable
from ackwise.middleware.errors import InvalidHandlerResult as InvalidHandlerResult
from ackwise.middleware.errors import InvalidReceipt as InvalidReceipt
from ackwise.middleware.errors import InvalidRuling as InvalidRuling
from ackwise.middleware.errors import PackageMissing as PackageMissing
from ackwise.middleware.errors import PublishRefused as PublishRefused
from ackwise.middleware.errors import PublishUnavailable as PublishUnavailable
from ackwise.middleware.errors import StoreUnavailable as StoreUnavailable
from ackwise.middleware.errors import TransactionAborted as TransactionAborted
from ackwise.middleware.errors import Unavailable as Unavailable
