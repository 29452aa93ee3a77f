"""Counts of the share group's part of one worker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ShareCounts"]


@dataclass(slots=True)
class ShareCounts:
    """What a worker has of a share group. All but the first two are messages since its start."""

    consumers: int = 0
    in_hand: int = 0  #: messages that are locked for this worker
    accepted: int = 0  #: those whose acknowledgement the broker has taken
    refused: int = 0  #: those whose lock had ended by then; they are delivered again
    copied: int = 0  #: those that went to the retry topic without a charge
    released: int = 0  #: those that were given back when the worker stopped
