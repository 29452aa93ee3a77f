"""The state of each message, writer and partition, folded from events in any order."""
