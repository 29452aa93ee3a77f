"""`ackwise doctor`: whether this machine, these brokers and this app can work together."""
