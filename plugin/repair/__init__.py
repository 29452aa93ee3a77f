"""Repair: carries out a plan. Lost messages are sent again, and nothing else is."""
