"""Pure functions from Arrow to Arrow, which each engine calls for its share of the rows."""
