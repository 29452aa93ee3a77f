"""PostgreSQL, on asyncpg: claims for `Dedup`, and an inbox for `Transactional`."""

from ackwise.middleware.errors import PackageMissing

try:
    from ackwise.stores.postgres.claims import PostgresStore, from_url
    from ackwise.stores.postgres.inbox import PostgresInbox
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "asyncpg":
        raise
    raise PackageMissing("the PostgreSQL store needs asyncpg; install it with pip install 'ackwise[postgres]'") from None

__all__ = ["PostgresInbox", "PostgresStore", "from_url"]
