"""The last commits of the groups that events are about, asked of the brokers before the events are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.plugin.cli.command import find_app, wait_for
from ackwise.spark.events.groups import groups_in

__all__ = ["commits_at", "is_app"]

#: An app, and no port.
_APP: Final = re.compile(r"[\w.]+:[^\W\d]\w*")


def commits_at(brokers: str, roots: Sequence[Path]) -> list[LastCommit]:
    """Return the last commits that `brokers`, addresses or an app that has them, keep of the groups in `roots`.

    What is committed later is in no file yet. Raises `ConfigurationError` or `Unavailable`.
    """
    from ackwise.plugin.topics.groupstate import last_commits  # here: a help needs no Kafka client

    return wait_for(last_commits(_settings(brokers), groups_in(roots)))


def is_app(name: str) -> bool:
    """Return whether this is `MODULE:APP` and not an address or a URL."""
    return _APP.fullmatch(name) is not None


def _settings(brokers: str) -> Any:
    from ackwise.plugin.settings.config import read_config
    from ackwise.plugin.settings.hostsettings import HostSettings

    if is_app(brokers):
        return find_app(brokers).group().settings
    return read_config().without_app(HostSettings, brokers, group="reconcile")
