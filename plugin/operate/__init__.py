"""What an operator sees and does: checks, status, explanations, dead letters, sending again."""
