"""Exactly once in a PostgreSQL database, on asyncpg."""

from ackwise.middleware.errors import ConfigurationError

try:
    from ackwise.stores.inbox.postgres.inbox import PostgresInbox, from_url
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise ConfigurationError("the PostgreSQL inbox needs asyncpg; install it with pip install 'ackwise[postgres]'") from None

__all__ = ["PostgresInbox", "from_url"]
