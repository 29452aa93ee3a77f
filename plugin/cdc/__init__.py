"""Change data capture: sends what a database's log says, and moves the position once Kafka acknowledged everything before it."""
