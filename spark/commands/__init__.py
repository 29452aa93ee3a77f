"""The commands of the command line that the offline half adds."""
