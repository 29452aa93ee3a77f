"""Topics of a group: their names, their plan, and what is in them."""
