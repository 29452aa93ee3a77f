"""Sending again: dead letters, and what a repair plan says was lost, through one engine."""
