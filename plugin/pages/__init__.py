"""Pages: a table as a value, the templates that show values, and the server that answers with them."""
