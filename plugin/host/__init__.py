"""Host on aiokafka: fetches, and takes and gives back partitions."""
