"""Host on a share group of Kafka: more workers than partitions."""
