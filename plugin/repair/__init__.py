"""Carrying out a repair plan: what reconciliation found lost is sent again, and nothing else is."""
