"""The life of one message, from its events and without Spark."""
