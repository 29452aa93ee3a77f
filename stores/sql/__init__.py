"""SQL logic of claims, inbox and outbox, written once for all databases."""
