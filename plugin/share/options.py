"""Options of librdkafka for the clients of a share group, from those of the app."""

from __future__ import annotations

from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.share import Share
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["admin_config", "consumer_config"]

#: What both clients can be told alike.
_ALIKE: Final = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}

#: What a client proves itself with, and can't be told to another one. Others, such as `fetch_max_bytes`, are for its own client.
_PROOF: Final = ("ssl_context", "sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider")

#: Records that a poll asks for. A broker hands out whole batches of producers, so it may get more.
_POLLED: Final = 100

#: Only errors: the client says once that it is a preview, which the page says too.
_LOG_LEVEL: Final = 3


def admin_config(settings: HostSettings, share: Share) -> dict[str, Any]:
    """What any client of librdkafka needs. Raises `ConfigurationError` for credentials that only aiokafka understands."""
    theirs = settings.client_options
    for name in _PROOF:
        if theirs.get(name) is not None and not any(option.startswith(("ssl.", "sasl.")) for option in share.client_options):
            raise ConfigurationError(
                f"client_options has {name!r}, which the client of share groups does not know; give Share(client_options=…) "
                "what librdkafka takes instead, such as ssl.ca.location"
            )
    alike = {ours: theirs[name] for name, ours in _ALIKE.items() if theirs.get(name) is not None}
    return {
        "bootstrap.servers": settings.brokers,
        "client.id": settings.client_id,
        "log_level": _LOG_LEVEL,
        **alike,
        **share.client_options,
    }


def consumer_config(settings: HostSettings, share: Share) -> dict[str, Any]:
    """What a consumer of the share group needs. Raises as `admin_config`."""
    return {
        **admin_config(settings, share),
        "group.id": share.group_of(settings.group),
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": share.client_options.get("max.poll.records", _POLLED),
    }
