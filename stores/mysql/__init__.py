"""MariaDB and MySQL, on asyncmy: claims for `Dedup`, an inbox for `Transactional`, and an outbox."""

from ackwise.middleware.errors import PackageMissing

try:
    from ackwise.stores.mysql.claims import MySQLStore, from_url
    from ackwise.stores.mysql.inbox import MySQLInbox
    from ackwise.stores.mysql.outbox import MySQLOutbox
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "asyncmy":
        raise
    raise PackageMissing("the MySQL store needs asyncmy; install it with pip install 'ackwise[mysql]'") from None

__all__ = ["MySQLInbox", "MySQLOutbox", "MySQLStore", "from_url"]
