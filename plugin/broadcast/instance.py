"""The settings of one instance among those that broadcast."""

from __future__ import annotations

import dataclasses

from ackwise.middleware.policies import Broadcasting
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["placed"]


def placed(settings: HostSettings, broadcasting: Broadcasting, *, says_start: bool) -> HostSettings:
    """`settings` of the group as those of this instance: the group `group@instance`.

    A new instance begins at the end, as RocketMQ's does (`CONSUME_FROM_LAST_OFFSET`), unless the user `says_start`.
    """
    start = settings.start if says_start else "latest"
    return dataclasses.replace(settings, instance=broadcasting.instance, start=start)
