"""Databases in which the handler's writes and the mark "done" are one transaction, for `Transactional`."""
