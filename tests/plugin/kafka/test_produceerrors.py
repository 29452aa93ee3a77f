"""Which errors of Kafka are about the record, and which never are a refusal."""

from __future__ import annotations

import pytest
from aiokafka import errors
from tests.tables import each

from ackwise.plugin.kafka.kafkaerrors import InvalidRecordError, Refusal, ThrottlingQuotaExceededError, refusal_of

_PASSING = (
    errors.LeaderNotAvailableError,
    errors.NotLeaderForPartitionError,
    errors.NotEnoughReplicasError,
    errors.NotEnoughReplicasAfterAppendError,
    errors.RequestTimedOutError,
    errors.KafkaStorageError,
    errors.BrokerNotAvailableError,
    errors.ReplicaNotAvailableError,
    errors.UnknownTopicOrPartitionError,
    errors.KafkaTimeoutError,
    errors.KafkaConnectionError,
    ThrottlingQuotaExceededError,
)


@each("kind", [pytest.param(kind, id=kind.__name__) for kind in _PASSING])
def test_no_leader_too_few_replicas_time_outs_and_throttling_are_never_a_refusal(kind: type[Exception]) -> None:
    assert refusal_of(kind()) is Refusal.PASSING


@each(
    ("kind", "expected"),
    [
        (InvalidRecordError, Refusal.OF_RECORD_IN_TIME),
        (errors.CorruptRecordException, Refusal.OF_RECORD_IN_TIME),
        (errors.UnknownError, Refusal.OF_RECORD_IN_TIME),
        (errors.MessageSizeTooLargeError, Refusal.OF_RECORD),
        (errors.RecordListTooLargeError, Refusal.OF_RECORD),
    ],
)
def test_an_error_about_the_record_is_known_as_one(kind: type[Exception], expected: Refusal) -> None:
    assert refusal_of(kind()) is expected
    assert expected.is_about_record


def test_the_codes_that_the_client_has_no_name_for_are_told_apart() -> None:
    assert errors.for_code(87) is InvalidRecordError
    assert errors.for_code(89) is ThrottlingQuotaExceededError
    assert errors.for_code(89).retriable
