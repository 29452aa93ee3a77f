"""Pages of a worker, and of the site for whoever is on call."""
