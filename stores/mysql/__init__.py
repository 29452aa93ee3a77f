"""Claims in MariaDB or MySQL, on asyncmy."""

from ackwise.middleware.errors import ConfigurationError

try:
    from ackwise.stores.mysql.store import MySQLStore, from_url
except ModuleNotFoundError as error:
    if error.name != "asyncmy":
        raise
    raise ConfigurationError("the MySQL store needs asyncmy; install it with pip install 'ackwise[mysql]'") from None

__all__ = ["MySQLStore", "from_url"]
