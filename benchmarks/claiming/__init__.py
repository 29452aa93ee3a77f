"""What `benchmarks.stores` measures, one file for each kind of contender, and the process that measures them."""
