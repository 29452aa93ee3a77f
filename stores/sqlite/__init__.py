"""SQLite files: claims for `Dedup`, and an inbox for `Transactional`."""

from ackwise.stores.sqlite.claims import SQLiteStore, from_url
from ackwise.stores.sqlite.inbox import SQLiteInbox

__all__ = ["SQLiteInbox", "SQLiteStore", "from_url"]
