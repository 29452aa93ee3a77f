"""The Spark session: where it runs, how it is configured, and the jars that it needs."""
