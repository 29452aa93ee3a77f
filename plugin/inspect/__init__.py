"""Views of an app and of a worker: what it does with its messages, and what it has in hand."""
