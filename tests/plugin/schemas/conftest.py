"""What the tests of schemas share."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.plugin.schemas.registryserver import RegistryServer, running_registry


@pytest.fixture
async def server() -> AsyncIterator[RegistryServer]:
    async with running_registry() as registry:
        yield registry


@pytest.fixture(scope="session", autouse=True)
def _authorities_are_read_once() -> Iterator[None]:
    """Each client of a registry reads the file of all authorities, also for plain HTTP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield
