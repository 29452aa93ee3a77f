"""The ids by which a store knows messages."""

from __future__ import annotations

from ackwise.middleware.identity import Identity, business_id, coordinates_id, message_id


def test_each_kind_of_id_has_these_bytes() -> None:
    assert coordinates_id("orders", 1, 2, 3).hex() == "6f000000010000000000000002" + "0000000000000003" + b"orders".hex()
    assert business_id("b1") == b"kb1"
    assert message_id("orders", b"m1") == b"h\0\0\0\x06ordersm1"


def test_a_claim_id_has_these_bytes() -> None:
    claim, number = Identity("ackwise", "billing", "charge").of(business_id("order-1"))
    assert claim.hex() == "4edd7aca716e42234d6878aebd1eec6c"
    assert number == int(claim.hex()[:16], 16) - (2**64 if claim[0] >= 128 else 0)
