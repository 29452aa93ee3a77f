"""Consuming with aiokafka, for a worker and for the delay relay: assignment, positions and fetching."""
