"""Runs: messages of an agent that go the same way, and when they come back."""
