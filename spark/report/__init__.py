"""The findings of a run as values, as JSON and as tables in a terminal."""
