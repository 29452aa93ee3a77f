"""What a worker shows to those who watch it: health, metrics and state."""
