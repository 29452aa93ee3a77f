"""The settings of Ackwise on Faust, beside those that the app has itself."""

from __future__ import annotations

from typing import Literal, TypedDict

__all__ = ["FaustSettings"]


class FaustSettings(TypedDict, total=False):
    """The settings of `HostSettings` that Faust does not have, as keywords."""

    create_topics: Literal["auto", "never", "broker"]
    revoke_timeout: float | str
    drain_timeout: float | str
    clock_skew: float | str
