"""`ackwise doctor`: checks that this machine, these brokers and this app can work together."""
