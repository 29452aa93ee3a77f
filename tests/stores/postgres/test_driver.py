"""How a connection of a pool is given back."""

from __future__ import annotations

from typing import Any

from tests.tables import each

from ackwise.stores.postgres.driver import Asyncpg, nothing
from ackwise.stores.protocol.options import CLAIMS


class Pool:
    """Remembers how long it may take."""

    timeout: float | None = -1.0

    async def release(self, _: object, *, timeout: float | None) -> None:
        self.timeout = timeout


@each("is_given, timeout", [(True, 2.5), (False, None)])
async def test_only_a_pool_of_our_own_that_resets_nothing_needs_no_limit(is_given: bool, timeout: float | None) -> None:
    pool: Any = Pool()
    url, given = (None, pool) if is_given else ("postgresql://host/database", None)
    options: dict[str, Any] = {"statement_cache_size": 100, "session": {}, "maintenance_session": {}, "is_bounded": True, "reset": nothing}
    driver = Asyncpg(CLAIMS, url, given, timeout=2.5, max_size=1, **options)
    connection: Any = object()
    await driver.release(pool, connection)
    assert pool.timeout == timeout
