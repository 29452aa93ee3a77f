"""Claims of a worker: leases, messages that kill workers, receipts."""
