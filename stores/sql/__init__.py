"""What claims, inbox and outbox ask of an SQL database, written once for all of them."""
