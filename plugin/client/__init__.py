"""Calls of the Kafka client, each in bounded time, and what the client keeps to itself."""
