"""Refusals: the errors of Kafka that stay until somebody changes something, apart from those that may pass."""

from __future__ import annotations

from typing import Final

from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
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

__all__ = ["NotLetIn", "is_refusal", "reason"]


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
    """Whether asking again is in vain. What has no class of its own, such as a broker's unknown error, may pass."""
    return isinstance(error, _REFUSALS)


def reason(error: BaseException) -> str:
    """Why a client could not start: the sentence of a `NotLetIn`, the class of anything else."""
    return str(error) if isinstance(error, NotLetIn) else type(error).__name__
