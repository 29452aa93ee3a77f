"""The outbox of a MariaDB or MySQL database."""

from ackwise.stores.mysql.outbox.outbox import MySQLOutbox, from_url

__all__ = ["MySQLOutbox", "from_url"]
