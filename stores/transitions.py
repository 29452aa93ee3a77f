"""`decide` and `Record`, by the name under which stores of others import them."""

from ackwise.stores.protocol.transitions import Place, Record, decide

__all__ = ["Place", "Record", "decide"]
