"""The tables, counts and plan of a run, computed by Spark once all is judged."""
