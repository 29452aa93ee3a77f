"""One batch from fetch to commit: admit, execute, settle."""
