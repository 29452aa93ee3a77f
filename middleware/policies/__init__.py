"""What a user chooses: policies, retries and delay topics."""
