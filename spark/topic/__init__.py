"""The Kafka topic of events: publishing to it, and landing what it has as files."""
