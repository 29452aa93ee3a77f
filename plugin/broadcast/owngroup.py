"""Own group: an instance that broadcasts is the only member of the group `group@instance`, and commits as any member does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code

from ackwise.middleware.errors import AckwiseError, ConfigurationError, Unavailable
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.internals import member_id_of, partitions_of
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.consume.consumer import AiokafkaClient
from ackwise.plugin.consume.opening import Opening
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.topics import connected
from ackwise.plugin.lifespan import StoppedWhileStarting
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["OwnGroup"]

log = Log()

#: Seconds between two looks at a group that should be empty, and whether all partitions are here.
_LOOK_AGAIN: Final = 0.5

#: Times the session timeout until another member must be gone: one that was killed, or that a lost answer has made of this very
#: instance, is missed after one of them.
_SESSIONS: Final = 1.5


class OwnGroup:
    """The model of an instance whose positions are committed to the brokers."""

    def __init__(self, settings: HostSettings) -> None:
        self.group_id: str | None = settings.group
        self._settings = settings

    @asynccontextmanager
    async def opened(self, member: Member, client: AiokafkaClient) -> AsyncIterator[AiokafkaClient]:
        """See `MessageModel.opened`. Raises `ConfigurationError` if an instance of the same name is running, and what Kafka refuses."""
        self._settings = member.settings
        await member.opening.insist(partial(self._require_alone, member))
        yield client

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """See `MessageModel.join`."""
        client.subscribe(topics, member, opening)
        member.keep(partial(self._stay_alone, client.consumer, topics), "instance")

    async def _require_alone(self, member: Member) -> None:
        """Wait until the group is empty: one that was killed is in it until its session is over."""
        now, patience = asyncio.get_running_loop().time, _SESSIONS * self._settings.session_timeout
        begun, is_told = now(), False
        while others := await _members(self._settings):
            if now() > begun + patience:
                raise self._refusal(others)
            if not is_told:
                is_told = True
                log.info("an instance of this name is in its group, waiting whether it goes", group=self._settings.group, at_most=patience)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await member.stop.wait()
            if member.stop.is_set():
                raise StoppedWhileStarting

    async def _stay_alone(self, consumer: Any, topics: Sequence[str]) -> None:
        """Two that start together both find the group empty: then the one whose member id is smaller goes on.

        Raises `ConfigurationError` in the other.
        """
        now, patience = asyncio.get_running_loop().time, _SESSIONS * self._settings.session_timeout
        whole_at = now()
        while True:
            await asyncio.sleep(_LOOK_AGAIN)
            if not partitions_of(consumer, topics) - consumer.assignment():
                whole_at = now()
            if now() <= whole_at + patience:
                continue
            try:
                members = await _members(self._settings)
            except (KafkaError, AckwiseError) as error:
                log.debug("who else is in the group can't be read now", group=self._settings.group, error=said(error))
                continue
            mine = member_id_of(consumer)
            if any(other["member_id"] < mine for other in members):
                raise self._refusal([other for other in members if other["member_id"] != mine])

    def _refusal(self, others: Sequence[Any]) -> ConfigurationError:
        group, _, instance = self._settings.group.rpartition("@")
        where = others[0]["client_host"].lstrip("/")
        return ConfigurationError(
            f"instance {instance!r} of group {group!r} is running at {where} already, and each message would reach one of the two only; "
            "give every instance a name of its own"
        )


async def _members(settings: HostSettings) -> list[Any]:
    """Who is in the group of `settings`; nobody, if its brokers can't say that. Raises `Unavailable`, and `KafkaError` if they refuse."""
    async with connected(settings) as admin:
        try:
            (answer,) = await admin.describe_consumer_groups([settings.group])
        except IncompatibleBrokerVersion:
            return []
        described: Any = answer.to_object()["groups"][0]
    if described["error_code"]:
        error = for_code(described["error_code"])(settings.group)
        if is_refusal(error):
            raise error
        raise Unavailable(f"who is in group {settings.group!r} can't be read ({said(error)})")
    return list(described["members"])
