"""Pages for whoever is on call: how a group stands, what is dead and why. Read-only."""
