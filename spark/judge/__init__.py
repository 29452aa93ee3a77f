"""The verdict on each message and offset, and the accounts that must balance."""
