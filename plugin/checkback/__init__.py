"""Check-back: asks how local transactions ended of which nobody heard."""
