"""Exactly once in a MariaDB or MySQL database, on asyncmy."""

from ackwise.middleware.errors import ConfigurationError

try:
    from ackwise.stores.inbox.mysql.inbox import MySQLInbox, from_url
except ModuleNotFoundError as error:
    if error.name != "asyncmy":
        raise
    raise ConfigurationError("the MySQL inbox needs asyncmy; install it with pip install 'ackwise[mysql]'") from None

__all__ = ["MySQLInbox", "from_url"]
