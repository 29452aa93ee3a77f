"""Status of a whole group over all its workers, as the broker knows it."""
