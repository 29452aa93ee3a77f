"""The delay relay: moves copies from the delay topics to the retry topic when they are due."""
