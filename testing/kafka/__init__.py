"""An in-memory Kafka: one broker in this process that clients reach as they reach any."""
