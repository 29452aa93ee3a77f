"""Configuration of a share group, which brokers keep: it is as a worker needs it before the first record is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import Log
from ackwise.middleware.share import Share
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.share.options import admin_config

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["ensure_share_group", "read_share_group", "wanted"]

log = Log()

#: Seconds that brokers have to answer.
_TIMEOUT: Final = 10.0


def wanted(settings: HostSettings, share: Share) -> dict[str, str]:
    """What the share group must be told.

    Nothing of an aborted transaction, the begin of a partition that it has never read, and how long a record is locked.
    """
    return {
        "share.isolation.level": "read_committed",
        "share.auto.offset.reset": settings.start,
        "share.record.lock.duration.ms": str(round(float(share.lock) * 1000)),
    }


async def ensure_share_group(settings: HostSettings, share: Share) -> None:
    """Set what the share group lacks. Raises `ConfigurationError` if brokers refuse that, `Unavailable` if they don't answer."""
    await _asked(_ensure, settings, share)


async def read_share_group(settings: HostSettings, share: Share) -> dict[str, str]:
    """What brokers have of what is `wanted`. Raises as `ensure_share_group`."""
    found = await _asked(_read, settings, share)
    return {name: found.get(name, "") for name in wanted(settings, share)}


async def _asked(ask: Any, settings: HostSettings, share: Share) -> Any:
    """The client of confluent-kafka blocks, and has time limits of its own."""
    return await asyncio.to_thread(ask, settings, share)


def _ensure(settings: HostSettings, share: Share) -> None:
    group, needed = share.group_of(settings.group), wanted(settings, share)
    admin = _admin(settings, share)
    found = _described(admin, settings, group)
    missing = {name: value for name, value in needed.items() if found.get(name) != value}
    if not missing:
        return
    _alter(admin, settings, group, missing)
    log.info("the share group is configured", group=group, set=_listed(missing))


def _read(settings: HostSettings, share: Share) -> dict[str, str]:
    return _described(_admin(settings, share), settings, share.group_of(settings.group))


def _admin(settings: HostSettings, share: Share) -> AdminClient:
    try:
        kafka: Any = import_module("confluent_kafka")
        kafka.ShareConsumer  # noqa: B018  # older releases lack it
    except (ImportError, AttributeError):
        raise ConfigurationError("Share needs the share consumer of confluent-kafka: pip install 'ackwise[share]'") from None
    try:
        admin: AdminClient = _api().AdminClient(admin_config(settings, share))
    except (kafka.KafkaException, TypeError, ValueError) as error:
        raise ConfigurationError(f"client_options of Share can't be used: {error}") from error
    return admin


def _api() -> Any:
    """The module exports what it does not say that it exports."""
    return import_module("confluent_kafka.admin")


def _described(admin: AdminClient, settings: HostSettings, group: str) -> dict[str, str]:
    from confluent_kafka import KafkaException

    api = _api()
    try:
        (answer,) = admin.describe_configs([api.ConfigResource(api.ResourceType.GROUP, group)], request_timeout=_TIMEOUT).values()
        entries = answer.result(_TIMEOUT * 2)
    except KafkaException as error:
        raise _refused(error, settings, group, "can't be read", "describe its configuration (DESCRIBE_CONFIGS)") from error
    found = {name: str(entry.value) for name, entry in entries.items()}
    if "share.isolation.level" not in found:
        raise ConfigurationError(
            f"the brokers {settings.brokers!r} do not know share groups as Share needs them; it needs Kafka 4.2 or later, with the "
            "feature share.version on"
        )
    return found


def _alter(admin: AdminClient, settings: HostSettings, group: str, missing: Mapping[str, str]) -> None:
    from confluent_kafka import KafkaException

    api = _api()
    entries = [api.ConfigEntry(name, value, incremental_operation=api.AlterConfigOpType.SET) for name, value in missing.items()]
    resource = api.ConfigResource(api.ResourceType.GROUP, group, incremental_configs=entries)
    try:
        (answer,) = admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT).values()
        answer.result(_TIMEOUT * 2)
    except KafkaException as error:
        said = _listed(missing)
        if (found := error.args[0]).name() == "INVALID_CONFIG":
            raise ConfigurationError(
                f"the brokers refuse {said} for the share group {group!r} ({found.str()}); give Share what they allow, or let them allow it"
            ) from error
        raise _refused(
            error,
            settings,
            group,
            f"can't be given {said}",
            f"set it (ALTER_CONFIGS), or set it once: kafka-configs --alter --entity-type groups --entity-name {group} --add-config {said}",
        ) from error


def _listed(entries: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in entries.items())


def _refused(error: Any, settings: HostSettings, group: str, what: str, need: str) -> ConfigurationError | Unavailable:
    found = error.args[0]
    if found.retriable() or found.code() < 0:  # the client's own codes: nobody has answered
        return Unavailable(f"the brokers {settings.brokers!r} do not answer about the share group ({found.name()})")
    return ConfigurationError(f"the share group {group!r} {what} ({found.name()}: {found.str()}); let this worker {need}")
