"""The store protocol that all databases share: the transition table, the requests of an exchange, and the coalescer."""
