"""`Coalescer`, by the name under which others import it."""

from ackwise.stores.protocol.coalescer import Coalescer

__all__ = ["Coalescer"]
