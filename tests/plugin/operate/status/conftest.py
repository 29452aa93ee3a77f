"""The shop of the dead letters: a Kafka in memory, and an app of the group `billing`."""

from __future__ import annotations

from tests.plugin.operate.deadletters.conftest import shop

__all__ = ["shop"]
