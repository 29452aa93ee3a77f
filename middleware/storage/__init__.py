"""Protocols of what Ackwise stores in: claims, transactions, outbox, changes."""
