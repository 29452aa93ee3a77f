"""Which offset of a partition may be committed, and what the commit says."""
