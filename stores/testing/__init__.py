"""Test suites that every store passes: `StoreConformance` for claims, `ackwise.stores.testing.inbox` for `Transactional`."""

from ackwise.stores.testing.claims import Clock, Features, Scene, StoreConformance

__all__ = ["Clock", "Features", "Scene", "StoreConformance"]
