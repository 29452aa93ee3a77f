"""`python -m ackwise.plugin.cli`, for processes that must run under this very Python."""

from ackwise.plugin.cli.main import main

main()
