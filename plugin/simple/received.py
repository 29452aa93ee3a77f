"""`Received`: a message that a receiver has, with the receipt that lets it say what becomes of it."""

from __future__ import annotations

from typing import TypeVar

from ackwise.middleware.message import Message

__all__ = ["Received"]

T_co = TypeVar("T_co", covariant=True)


class Received(Message[T_co]):
    """A message that was received, and that nobody else receives until `receipt` expires.

    Read-only. The receipt counts in the consumer that gave it, for any of its receivers, and once.
    """

    __slots__ = ("receipt",)

    receipt: str

    def __init__(self, message: Message[T_co], receipt: str) -> None:
        super().__init__(message.delivery, message.value)
        self.fencing_token = message.fencing_token
        self.receipt = receipt

    def __repr__(self) -> str:
        return f"<Received {self.delivery.origin} attempt={self.delivery.attempt}>"
