"""What the tests of schemas share."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator

import pytest
from tests.plugin.schemas.registryserver import RegistryServer, running_registry


@pytest.fixture
async def server() -> AsyncIterator[RegistryServer]:
    async with running_registry() as registry:
        yield registry


_once = functools.cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def _authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client of a registry reads the file of all authorities, also for plain HTTP; no other test may get such a context."""
    monkeypatch.setattr(ssl, "create_default_context", _once)
