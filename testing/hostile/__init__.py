"""The hostile client: what may become of each call of aiokafka, and a plan of it that can be read back."""
