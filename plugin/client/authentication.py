"""Authentication: why brokers do not let a client in, which aiokafka tells its log alone and calls a lost connection."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import IllegalSaslStateError, KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from ackwise.plugin.client.refusal import NotLetIn

__all__ = ["CREDENTIALS", "find_refusal"]

#: Seconds for one address to let the client in or not. Kafka waits a moment before it refuses a password.
_TIMEOUT: Final = 10.0

#: What `X509_verify_cert` of OpenSSL calls them.
_NOT_YET, _EXPIRED, _OTHER_HOST, _OTHER_ADDRESS = 9, 10, 62, 64
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})

#: What a client of aiokafka proves itself with.
CREDENTIALS: Final = (
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)

#: Fields of a client of aiokafka, each with a `_` before it, that its connections are made of.
_OPTIONS: Final = ("client_id", *CREDENTIALS)


async def find_refusal(client: Any) -> NotLetIn | None:
    """Try each address of `client`, a client of aiokafka that could not start, once more, and return what refuses it.

    `None` if an address lets it in, if none says why, and for a client that proves nothing, which a broker can't refuse by that.
    """
    connections: Any = getattr(client, "_client", None) or getattr(client, "client", None)  # a producer calls it so
    if getattr(connections, "_security_protocol", "PLAINTEXT") == "PLAINTEXT":
        return None
    options = {name: getattr(connections, f"_{name}") for name in _OPTIONS}
    found = await asyncio.gather(*(_attempt(host, port, options) for host, port, _ in connections.hosts))
    refusals = [f"broker {host}:{port} {why}" for (host, port, _), why in zip(connections.hosts, found, strict=True) if why]
    return NotLetIn(refusals[0]) if refusals and None not in found else None


async def _attempt(host: str, port: int, options: dict[str, Any]) -> str | None:
    """Why the broker there does not let in a client with `options`: an empty text if it does not say, `None` if it lets it in."""
    connection = AIOKafkaConnection(host, port, request_timeout_ms=round(_TIMEOUT * 1000), **options)
    try:
        async with asyncio.timeout(_TIMEOUT):
            await connection.connect()
    except (OSError, KafkaError, TimeoutError) as error:
        return _reason(error, options["sasl_mechanism"])
    finally:
        connection.close()
    return None


def _reason(error: Exception, mechanism: str) -> str:
    """What is wrong and what to do. Repeats no name, no password and no words of the broker, which may hold them."""
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
