"""`ackwise demo`: an order-billing service whose worker is killed, and the books that are checked afterwards."""
