"""Broadcasting: every instance gets every message, and keeps positions of its own."""
