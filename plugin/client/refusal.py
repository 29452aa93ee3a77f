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
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnrecognizedBrokerVersion,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

__all__ = ["is_refusal"]

_REFUSALS: Final = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnrecognizedBrokerVersion,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)


def is_refusal(error: BaseException) -> bool:
    """Whether asking again is in vain. What has no class of its own, such as a broker's unknown error, may pass."""
    return isinstance(error, _REFUSALS)
