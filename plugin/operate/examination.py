"""The examination by the doctor: runs every check; a failing check hides no other."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.operate import machinechecks
from ackwise.plugin.operate.explanation import Application
from ackwise.plugin.operate.machinechecks import Finding, extras, needs, refused
from ackwise.plugin.settings.connecting import reach
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group

#: Seconds until a look is given up.
_PATIENCE: Final = 20.0

_Look = Callable[[], Finding | list[Finding] | Awaitable[Finding | list[Finding]]]


async def examine(app: Application | None = None, brokers: str | None = None) -> list[Finding]:
    """Look at this machine, at the brokers, and at what `app` needs; `brokers` stands for those of the app.

    Raises `ConfigurationError` only for `brokers` that are no addresses.
    """
    before = machinechecks.read_clocks()
    group, about_the_app = _group(app)
    packages = extras({} if group is None else _needed(group))
    findings = []
    for subject, one in _MACHINE.items():
        findings += await look(subject, one)
    findings += [*packages, *about_the_app]
    if group is not None:
        if not any(finding.verdict == "problem" for finding in packages):  # the store would say the same again
            findings += await look("claims", partial(machinechecks.claims, group.dedup))
            if (policy := group.slots.outbox) is not None:
                findings += await look("outbox", partial(machinechecks.outbox, policy))
        if group.dedup is not None:
            findings += await look("identity", partial(machinechecks.identity, group.dedup))
        findings += await look("events", partial(machinechecks.events, group.events))
    settings = group.settings if group is not None else None
    if brokers is not None:
        settings = dataclasses.replace(settings, brokers=brokers) if settings else HostSettings(brokers, group="ackwise-doctor")
    if settings is not None:
        findings += await _kafka(settings, None if group is None else group._replace(settings=settings))
    return [*findings, *await look("clock", lambda: machinechecks.clock(before, machinechecks.read_clocks(), _installed()))]


def _needed(group: Group) -> dict[str, str]:
    return needs(group.dedup, group.events, group.slots.share, group.slots.outbox, group.slots.watch)


def _installed() -> float:
    return Path(__file__).stat().st_mtime


_MACHINE: Final[dict[str, _Look]] = {
    "python": machinechecks.python,
    "packages": machinechecks.packages,
    "codecs": machinechecks.codecs,
    "java": machinechecks.java,
    "open files": machinechecks.file_limit,
    "temporary files": machinechecks.temporary_files,
}


async def look(subject: str, one: _Look) -> list[Finding]:
    """What `one` found; what it raises is a finding as well."""
    try:
        async with asyncio.timeout(_PATIENCE):
            found = one()
            if inspect.isawaitable(found):
                found = await found
    except AckwiseError as error:
        return [refused(subject, error)]
    except TimeoutError:
        return [Finding(subject, "problem", f"no answer within {_PATIENCE:.0f} s", "check whether it is overloaded, and try again")]
    except Exception as error:  # noqa: BLE001  # a look that fails must not hide the others
        said = " ".join(str(error).split())
        return [Finding(subject, "problem", f"it can't be checked ({type(error).__name__}: {said})", "fix that first")]
    return found if isinstance(found, list) else [found]


def _group(app: Application | None) -> tuple[Group | None, list[Finding]]:
    if app is None:
        return None, []
    try:
        group = app.group()
    except AckwiseError as error:
        return None, [refused("app", error)]
    read = [*group.sources, *(f"what matches {pattern}" for pattern in group.patterns.values())]
    return group, [Finding("app", "ok", f"group {group.settings.group}, reads {', '.join(read)}")]


async def _kafka(settings: HostSettings, group: Group | None) -> list[Finding]:
    from ackwise.plugin.kafka.throttling import THROTTLING
    from ackwise.plugin.operate import brokerchecks  # the Kafka client is imported where it is needed
    from ackwise.plugin.topics.topicadmin import connected

    before = THROTTLING.seconds
    findings = await look("brokers", partial(_addresses, settings))
    if findings[0].verdict == "problem":
        return [*findings, Finding("topics", "warning", "nothing was asked of Kafka, since no broker answers")] if group else findings

    try:
        async with connected(settings) as admin:
            findings += await look("cluster", partial(brokerchecks.cluster, admin))
            if group is not None:
                findings += await look("patterns", partial(brokerchecks.patterns, group))
                findings += await look("topics", partial(brokerchecks.topics, group))
                findings += await look("groups", partial(brokerchecks.membership, admin, group))
                findings += await look("records", partial(brokerchecks.records, admin, group))
                if (share := group.slots.share) is not None:
                    from ackwise.plugin.operate.brokerchecks import share_group

                    findings += await look("share group", partial(share_group, settings, share))
            findings.append(brokerchecks.judge_throttling(THROTTLING.seconds - before, settings.client_id))
    except AckwiseError as error:
        findings.append(refused("cluster", error))
    return findings


async def _addresses(settings: HostSettings) -> Finding:
    from ackwise.plugin.operate.brokerchecks import judge_addresses

    return judge_addresses(await reach(settings.brokers))
