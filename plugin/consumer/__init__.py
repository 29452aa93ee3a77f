"""A member of a consumer group, whatever client fetches for it: lanes, assignment, fetching, commits."""
