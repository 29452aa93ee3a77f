"""Pages of a worker, and of the on-call web UI."""
