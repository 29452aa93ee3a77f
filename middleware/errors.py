"""Errors of Ackwise, in one tree.

AckwiseError
├── ConfigurationError       you did it; refused at start, before anything is consumed
│   └── PackageMissing       a package of an extra is not installed; also an ImportError
├── InvalidRuling            you did it; a ruling that the batch can't take
├── InvalidReceipt           it happened to you; a receipt that does not count any more
├── InvalidHandlerResult     you did it; the handler returned something that is not a status
├── ConsumeTimeout           you did it; the handler took longer than its consume timeout
├── TransactionAborted       you did it; the handler ended or broke the transaction that it writes in
│   └── TransactionCommitted it ended it by a commit, so that what it wrote until then stays
└── Unavailable              it happened to you; retried with back-off, nothing committed meanwhile
    ├── StoreUnavailable     the claim store did not answer
    │   └── Fenced           somebody else has taken the partition over
    ├── PublishUnavailable   the broker did not acknowledge a copy
    ├── CodecUnavailable     what a decoder needs did not answer, such as a schema registry
    └── EventLogUnavailable  the event log could not be made durable
PublishRefused (AckwiseError)  the broker will never take this copy; the message becomes a dead letter
"""


class AckwiseError(Exception):
    """The root of everything that Ackwise raises."""


class ConfigurationError(AckwiseError):
    """A setting that can't work, found before anything was consumed. The message says what to change."""


class PackageMissing(ConfigurationError, ImportError):
    """A package that an extra brings is not installed.

    It is an `ImportError` too, since programs that read every name of every module, as freezegun and doctest do, expect that one.
    """


class UndecodableHeader(AckwiseError):
    """The name of a header of a record is not UTF-8."""


class InvalidRuling(AckwiseError):
    """A ruling that the batch can't take, such as one on a message that is not in it."""


class InvalidReceipt(AckwiseError):
    """The receipt of a message has expired, was used, or was replaced by a newer one; the message is delivered again."""


class InvalidHandlerResult(AckwiseError):
    """A handler returned something other than `None` or a `ConsumeStatus`; its messages come back later."""


class ConsumeTimeout(AckwiseError):
    """The handler took longer than its consume timeout, and was cancelled; its messages come back later."""


class TransactionAborted(AckwiseError):
    """The transaction was committed, rolled back or broken by the code that writes in it. The messages of a handler come back later."""


class TransactionCommitted(TransactionAborted):
    """The handler committed the transaction that it writes in, too late to refuse it; its messages are dead letters."""


class Unavailable(AckwiseError):
    """Something outside did not answer. Nothing was committed; the step is tried again with back-off."""


class StoreUnavailable(Unavailable):
    """The claim store did not answer; whether the exchange was applied is unknown, and repeating it is safe."""


class Fenced(StoreUnavailable):
    """Another worker has taken over the partition: nothing of this transaction stays."""


class CodecUnavailable(Unavailable):
    """What a decoder needs did not answer, such as a schema registry; for decoders to raise. Its messages are held, and lose no attempt.

    Its text is logged, so let nothing of the message be in it.
    """


class PublishUnavailable(Unavailable):
    """The broker did not acknowledge a copy in time; whether it was written is unknown."""


class EventLogUnavailable(Unavailable):
    """The event log could not be made durable, for example because the disk is full."""


class PublishRefused(AckwiseError):
    """The broker refuses this copy for good, for example because it is larger than the topic allows."""
