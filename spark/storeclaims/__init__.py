"""The claims of a store, compared with the verdicts."""
