"""Checks of the share group of an app: whether brokers know share groups, and what they have of this one."""

from __future__ import annotations

from ackwise.middleware.share import Share
from ackwise.plugin.doctor.finding import Finding
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.share.groupconfig import read_share_group, wanted

__all__ = ["share_group"]


async def share_group(settings: HostSettings, share: Share) -> Finding:
    """Raises `ConfigurationError` if brokers know no share groups or tell nothing of this one, `Unavailable` if they don't answer."""
    found = await read_share_group(settings, share)
    subject = f"group {share.group_of(settings.group)}"
    needed = {name: value for name, value in wanted(settings, share).items() if found[name] != value}
    if not needed:
        return Finding(subject, "ok", ", ".join(f"{name} {value}" for name, value in found.items()))
    listed = ", ".join(f"{name} is {found[name] or 'not set'}" for name in needed)
    return Finding(subject, "warning", listed, f"the start of a worker sets {', '.join(needed.values())}, if it may")
