"""Java and brokers on this machine, for Spark, the demo and tests."""
