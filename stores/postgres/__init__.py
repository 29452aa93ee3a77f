"""Claims in PostgreSQL, on asyncpg."""

from ackwise.middleware.errors import ConfigurationError

try:
    from ackwise.stores.postgres.store import PostgresStore, from_url
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise ConfigurationError("the PostgreSQL store needs asyncpg; install it with pip install 'ackwise[postgres]'") from None

__all__ = ["PostgresStore", "from_url"]
