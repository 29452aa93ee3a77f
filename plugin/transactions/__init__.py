"""Transactional messages: half messages, local transactions, and the producer that knows both."""
