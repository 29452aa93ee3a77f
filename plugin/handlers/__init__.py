"""Handlers: a user's function, and what stands around it."""
