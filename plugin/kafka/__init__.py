"""Kafka client access: calls in bounded time, and the private parts of aiokafka that the hosts read."""
