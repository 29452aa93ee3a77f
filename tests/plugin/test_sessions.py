"""A session of SQLAlchemy per message, as `docs/how-to/application.md` opens it: from a factory that a lifespan yields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from ackwise import App
from ackwise.plugin.settings.config import Config
from ackwise.testing import TestApp

Sessions = async_sessionmaker[AsyncSession]


async def test_each_message_has_a_session_of_its_own_and_a_failed_one_leaves_nothing_behind(tmp_path: Path) -> None:
    app, seen = App("billing", config=Config()), list[AsyncSession]()

    @app.lifespan
    async def sessions() -> AsyncIterator[Sessions]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS refunds (id TEXT)"))
        yield async_sessionmaker(engine)
        await engine.dispose()

    @app.agent("refunds")
    async def refund(order: str, sessions: Sessions) -> None:
        async with sessions.begin() as session:
            seen.append(session)
            await session.execute(text("INSERT INTO refunds VALUES (:id)"), {"id": order})
            if order == "broken":
                raise ValueError

    async with TestApp(app) as worker:
        assert [(await worker.deliver("refunds", order)).kind for order in ("one", "broken", "two")] == ["done", "later", "done"]
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    async with engine.begin() as connection:
        rows = [row.id for row in await connection.execute(text("SELECT id FROM refunds"))]
    await engine.dispose()
    assert rows == ["one", "two"]
    assert len({id(session) for session in seen}) == 3
