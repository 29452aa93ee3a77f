"""Errors of a send: which are about the record, which about its topic or the client, and which may pass. Pure but for two names."""

from __future__ import annotations

import enum
from typing import Any, Final

from aiokafka import errors

__all__ = ["InvalidRecordError", "Refusal", "ThrottlingQuotaExceededError", "UnencodableError", "is_certain", "refusal_of"]


class InvalidRecordError(errors.BrokerResponseError):
    """The broker has validated the record and takes none like it, such as one without a key on a compacted topic."""

    errno = 87
    message = "INVALID_RECORD"
    description = "This record has failed the validation on the broker and hence will be rejected."


class ThrottlingQuotaExceededError(errors.BrokerResponseError):
    """The broker takes no more of this client for a while."""

    errno = 89
    message = "THROTTLING_QUOTA_EXCEEDED"
    description = "The throttling quota has been exceeded."
    retriable = True


#: aiokafka reads these codes as UNKNOWN_SERVER_ERROR: one is a refusal that must be told from a broker's fault, the other never is one.
_NAMED: Final[dict[int, Any]] = {kind.errno: kind for kind in (InvalidRecordError, ThrottlingQuotaExceededError)}
errors.kafka_errors.update(_NAMED)


class UnencodableError(Exception):
    """The client can't encode the record, and never will."""


class Refusal(enum.Enum):
    """What an error says of a record that was sent. Of a batch with others, nobody knows which record it is about."""

    OF_RECORD = "of_record"
    """Refused for good: it is too large, or can't be written at all."""
    OF_RECORD_IN_TIME = "of_record_in_time"
    """About the record, or a fault of the broker: which one, time shows. See `RecordRefusals`."""
    OF_TARGET = "of_target"
    """The topic, or the right to write to it: refused until somebody changes something."""
    OF_CLIENT = "of_client"
    """The client can't go on; another one can."""
    PASSING = "passing"
    """Whether the record is there is unknown. No leader, too few replicas, time-outs and throttling are never a refusal."""

    @property
    def is_about_record(self) -> bool:
        """Whether another record of the same batch may be taken."""
        return self in (Refusal.OF_RECORD, Refusal.OF_RECORD_IN_TIME)


#: The first line that has the class decides. What is not in the table is PASSING.
_TABLE: Final[tuple[tuple[Refusal, tuple[type[BaseException], ...]], ...]] = (
    (
        Refusal.OF_RECORD,
        (
            errors.MessageSizeTooLargeError,
            errors.RecordListTooLargeError,
            errors.UnsupportedForMessageFormatError,
            UnencodableError,
            UnicodeError,  # the name of a header that has no bytes
        ),
    ),
    (
        Refusal.OF_RECORD_IN_TIME,
        (
            InvalidRecordError,
            errors.CorruptRecordException,
            errors.InvalidTimestampError,  # timestamps are the client's own: it may be a clock that is wrong
            errors.PolicyViolationError,
            errors.UnknownError,
        ),
    ),
    (
        Refusal.OF_TARGET,
        (errors.InvalidTopicError, errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError),
    ),
    (
        Refusal.OF_CLIENT,
        (
            errors.OutOfOrderSequenceNumber,
            errors.ProducerFenced,
            errors.InvalidProducerEpoch,
            errors.InvalidProducerIdMapping,
            errors.UnknownProducerId,
            errors.ProducerClosed,
        ),
    ),
)


def refusal_of(error: BaseException) -> Refusal:
    """What `error` says of the records that were sent together."""
    return next((refusal for refusal, classes in _TABLE if isinstance(error, classes)), Refusal.PASSING)


def is_certain(error: BaseException) -> bool:
    """Whether the broker has looked at the record and refuses it: no fault of a broker looks like that."""
    return isinstance(error, InvalidRecordError)
