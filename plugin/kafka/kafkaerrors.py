"""Errors of Kafka: which are permanent until an operator changes something, and which may pass. Pure but for two names.

aiokafka reports a failed authentication as a lost connection and names the cause only in its log; it is found out here. An error of a
send is about the record, about its topic or client, or may pass.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from typing import Any, Final

from aiokafka import errors
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnrecognizedBrokerVersion,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from ackwise.plugin.kafka.aiokafkainternals import addresses_of, connect, identity_of

#: Seconds for one address to let the client in or not. Kafka waits a moment before it refuses a password.
_TIMEOUT: Final = 10.0

#: What `X509_verify_cert` of OpenSSL calls them.
_NOT_YET, _EXPIRED, _OTHER_HOST, _OTHER_ADDRESS = 9, 10, 62, 64
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})


class NotLetIn(KafkaError):
    """The brokers do not let this client in: its text says which, why, and what to do."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))  # without the name of the class, which aiokafka would put before it


_REFUSALS: Final = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NotLetIn,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnrecognizedBrokerVersion,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)


def is_refusal(error: BaseException) -> bool:
    """Return whether asking again is in vain. An error without a class, such as a broker's unknown error, may pass."""
    return isinstance(error, _REFUSALS)


def reason(error: BaseException) -> str:
    """Why a client could not start: the sentence of a `NotLetIn`, the class of anything else."""
    return str(error) if isinstance(error, NotLetIn) else type(error).__name__


async def find_refusal(client: Any) -> NotLetIn | None:
    """Try each address of `client`, a client of aiokafka that could not start, once more, and return what refuses it.

    `None` if an address lets it in, if none says why, and for a client that proves nothing, which a broker can't refuse by that.
    """
    identity = identity_of(client)
    if identity.get("security_protocol", "PLAINTEXT") == "PLAINTEXT":
        return None
    addresses = addresses_of(client)
    found = await asyncio.gather(*(_attempt(host, port, identity) for host, port in addresses))
    refusals = [f"broker {host}:{port} {why}" for (host, port), why in zip(addresses, found, strict=True) if why]
    return NotLetIn(refusals[0]) if refusals and None not in found else None


async def _attempt(host: str, port: int, identity: dict[str, Any]) -> str | None:
    """Why the broker there does not let in a client of this identity: an empty text if it does not say, `None` if it lets it in."""
    try:
        await connect(host, port, identity, within=_TIMEOUT)
    except (OSError, KafkaError, TimeoutError) as error:
        return _reason(error, identity["sasl_mechanism"])
    return None


def _reason(error: Exception, mechanism: str) -> str:
    """Return what is wrong and what to do, without names, passwords or the broker's text, which may contain them."""
    match error:
        case ssl.SSLCertVerificationError():
            return _reason_of_certificate(error)
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "speaks no TLS on this port; correct the port in brokers, or security_protocol"
        case ssl.SSLError():
            return f"and this client do not agree on TLS ({error.reason}); check the versions, ciphers and certificates of ssl_context"
        case SaslAuthenticationFailed():
            return f"refuses the credentials ({mechanism}); check sasl_plain_username, sasl_plain_password and sasl_mechanism"
        case UnsupportedSaslMechanismError():
            return f"does not take {mechanism}; set sasl_mechanism to one that this port takes"
        case IllegalSaslStateError():
            return "takes no SASL on this port; correct the port in brokers, or security_protocol"
    return ""


def _reason_of_certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "has a certificate that has expired; renew it, or correct the clock of this machine"
    if error.verify_code == _NOT_YET:
        return "has a certificate that is not valid yet; correct the clock of this machine"
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return "has a certificate for another host; name it in brokers as its certificate does, or issue one for this name"
    if error.verify_code in _UNKNOWN_ISSUER:
        return (
            "has a certificate of an authority that ssl_context does not know; name its file: ssl_cafile, or "
            "ssl.create_default_context(cafile=…) in the code"
        )
    return f"has a certificate that is not trusted ({error.verify_message}); correct it, or what ssl_context trusts"


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
    """What an error means for a record that was sent. In a batch with others, the record it is about is unknown."""

    OF_RECORD = "of_record"
    """Refused for good: it is too large, or can't be written at all."""
    OF_RECORD_IN_TIME = "of_record_in_time"
    """About the record, or a fault of the broker: which one, time shows. See `RecordRefusals`."""
    OF_TARGET = "of_target"
    """The topic, or the right to write to it: refused until an operator changes something."""
    OF_CLIENT = "of_client"
    """The client can't go on; another one can."""
    PASSING = "passing"
    """Whether the record is there is unknown. No leader, too few replicas, time-outs and throttling are never a refusal."""

    @property
    def is_about_record(self) -> bool:
        """Return whether another record of the same batch may be taken."""
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
    """Return what `error` means for the records that were sent together."""
    return next((refusal for refusal, classes in _TABLE if isinstance(error, classes)), Refusal.PASSING)


def is_certain(error: BaseException) -> bool:
    """Return whether the broker has looked at the record and refuses it: no fault of a broker looks like that."""
    return isinstance(error, InvalidRecordError)
