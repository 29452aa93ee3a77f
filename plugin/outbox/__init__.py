"""The outbox: its relay, which sends the rows that business transactions wrote."""
