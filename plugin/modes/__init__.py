"""Modes other than a consumer group's: broadcasting and share groups."""
