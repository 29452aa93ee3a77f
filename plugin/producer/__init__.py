"""Sending: one idempotent producer for `Producer`, for what handlers publish, and for relays of outboxes."""
