"""Pages for whoever is on call that need the events: the story of a message, and the last audits."""
