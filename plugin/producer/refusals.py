"""Refusals of a send: which errors of Kafka are final, which are those of a neighbour or of the client, and which may pass. Pure."""

from __future__ import annotations

import enum
from typing import Final

from aiokafka import errors

__all__ = ["Refusal", "refusal_of"]


class Refusal(enum.Enum):
    """What an error says of the message that was sent."""

    FINAL = "final"
    """Refused for good: sent again it would be refused again, until somebody changes something."""
    OF_BATCH = "of_batch"
    """Some record of the batch is refused. Only a record that was alone in its batch knows that it is the one."""
    OF_CLIENT = "of_client"
    """The client can't go on; another one can."""
    PASSING = "passing"
    """Whether the message is there is unknown. It is sent again under its id."""


#: The first class of a line that matches decides. What is not in the table is PASSING.
_TABLE: Final[tuple[tuple[Refusal, tuple[type[BaseException], ...]], ...]] = (
    (
        Refusal.FINAL,
        (
            errors.InvalidTopicError,
            errors.TopicAuthorizationFailedError,
            errors.ClusterAuthorizationFailedError,
            errors.PolicyViolationError,
            errors.UnsupportedForMessageFormatError,
            UnicodeError,  # the name of a header that has no bytes
        ),
    ),
    (Refusal.OF_BATCH, (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.InvalidTimestampError)),
    # aiokafka knows no class for INVALID_RECORD, such as a record without key to a compacted topic: alone in its batch it is PASSING.
    (Refusal.OF_BATCH, (errors.UnknownError, errors.CorruptRecordException)),
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

#: Refused for good once it is known which record of the batch is meant.
_FINAL_ALONE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.InvalidTimestampError)


def refusal_of(error: BaseException, *, alone: bool) -> Refusal:
    """What `error` says of a message; `alone` if no other message was in its batch."""
    found = next((refusal for refusal, classes in _TABLE if isinstance(error, classes)), Refusal.PASSING)
    if found is Refusal.OF_BATCH and alone:
        return Refusal.FINAL if isinstance(error, _FINAL_ALONE) else Refusal.PASSING
    return found
