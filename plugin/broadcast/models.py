"""The message model of an app: RocketMQ's CLUSTERING, or BROADCASTING with the positions in Kafka or in a local file."""

from __future__ import annotations

from pathlib import Path

from ackwise.middleware.policies import Broadcasting
from ackwise.plugin.broadcast.ownfile import OwnFile
from ackwise.plugin.broadcast.owngroup import OwnGroup
from ackwise.plugin.host.messagemodel import Clustering, MessageModel
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["model_of"]


def model_of(settings: HostSettings, broadcasting: Broadcasting | None) -> MessageModel:
    """How a worker of `settings` comes to its partitions and keeps its positions."""
    if broadcasting is None:
        return Clustering(settings)
    return OwnGroup(settings) if broadcasting.offsets_file is None else OwnFile(settings, Path(broadcasting.offsets_file))
