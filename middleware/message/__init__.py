"""A message: its batch, its keys, its headers, what becomes of it, what is sent."""
