"""Test suites that every store passes: `StoreConformance` for claims, `ackwise.stores.conformance.inbox` for `Transactional`."""

from ackwise.stores.conformance.claims import Clock, Features, Scene, StoreConformance

__all__ = ["Clock", "Features", "Scene", "StoreConformance"]
