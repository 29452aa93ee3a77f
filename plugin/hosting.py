"""Hosting: makes the host of an app from what was used. Here alone policies meet what runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer

from ackwise.middleware.agent import Agent
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.share import Share
from ackwise.plugin.broadcast.models import model_of
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.parts import Parts
from ackwise.plugin.host.host import AiokafkaHost
from ackwise.plugin.inspect.explain import explain
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.slots import Slots

if TYPE_CHECKING:
    from ackwise.plugin.watch.watching import Watching

__all__ = ["host_of", "watching_of"]


def host_of(
    slots: Slots,
    settings: HostSettings,
    agents: Sequence[Agent],
    consumer: AIOKafkaConsumer | None = None,
    *,
    before: AiokafkaHost | None = None,
) -> AiokafkaHost:
    """The host of `agents` with everything that was used, on a `consumer` of the user's own if there is one, after the host `before`.

    Raises `ConfigurationError`.
    """
    slots.check(agents)
    slots.log_overrides(settings.group)
    parts = Parts.of(slots, settings.group, [topic for agent in agents for topic in agent.topics])
    if (watching := watching_of(slots, settings, agents)) is not None:
        parts = replace(parts, store=watching.timed(parts.store), sink=watching.counted(parts.sink))
    return AiokafkaHost(
        settings,
        agents,
        parts,
        consumer=consumer,
        model=model_of(settings, slots.broadcasting),
        sharing=None if (share := slots.share) is None else _sharing(share),
        watching=watching,
        before=before,
    )


def watching_of(slots: Slots, settings: HostSettings, agents: Sequence[Agent]) -> Watching | None:
    """What shows the worker. Raises `ConfigurationError` without the packages of its extra."""
    if (policy := slots.watch) is None:
        return None
    try:
        from ackwise.plugin.watch.watching import Watching  # what it needs is installed by those who watch
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"Watch needs {error.name}, which is not installed; pip install 'ackwise[watch]'") from None
    return Watching(policy, lambda: explain(settings, slots, agents, slots.config))


def _sharing(share: Share) -> Callable[[Sequence[str], Member], AbstractAsyncContextManager[None]]:
    from ackwise.plugin.share.sharing import Sharing  # its client is imported by those who run it

    return lambda topics, member: Sharing(share, topics, member).working()
