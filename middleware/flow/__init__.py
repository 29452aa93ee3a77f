"""Flow control: limits, breaker, pauses, and the records that tell all workers."""
