"""The outbox of any SQL database: what it asks and decides, once."""
