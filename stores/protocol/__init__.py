"""The store protocol that all databases share: the transition table and the requests of an exchange."""
