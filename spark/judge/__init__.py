"""The verdict on each message and offset, and the books that must balance."""
