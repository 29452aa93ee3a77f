"""The local engine in many tasks: each has the rows of some partitions, and what must come together goes through files."""
