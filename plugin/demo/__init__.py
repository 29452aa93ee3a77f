"""`ackwise demo`: an order-billing service whose worker is killed, and the audit that follows."""
