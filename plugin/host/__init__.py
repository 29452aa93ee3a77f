"""The host on aiokafka: opens and closes it, fetches, and takes and gives back partitions."""
