"""The process of a worker: its life, its garbage collection and its end."""
