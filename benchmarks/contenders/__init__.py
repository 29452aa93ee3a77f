"""What `benchmarks.consumers` compares: one module per contender, each run as a process of its own."""
