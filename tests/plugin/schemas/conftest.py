"""What the tests of schemas share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.plugin.schemas.registryserver import RegistryServer, running_registry


@pytest.fixture
async def server() -> AsyncIterator[RegistryServer]:
    async with running_registry() as registry:
        yield registry
