"""The part of the store protocol that all databases share: what is decided, what is asked for, and how requests are joined."""
