"""Receiving message by message: a consumer that is asked for messages, and told one by one what became of them."""
