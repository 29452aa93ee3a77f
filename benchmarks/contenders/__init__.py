"""What `benchmarks.consumers` compares: one module per contender, each run as its own process."""
