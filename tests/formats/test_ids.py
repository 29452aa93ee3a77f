"""The ids by which a store knows messages."""

from __future__ import annotations

import enum
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from ackwise.middleware.message.keys import Identity, business_id, coordinates_id, key_from, message_id


def test_each_kind_of_id_has_these_bytes() -> None:
    assert coordinates_id("orders", 1, 2, 3).hex() == "6f000000010000000000000002" + "0000000000000003" + b"orders".hex()
    assert business_id("b1") == b"kb1"
    assert message_id("orders", b"m1") == b"h\0\0\0\x06ordersm1"


def test_a_business_key_of_each_other_type_has_these_bytes() -> None:
    class Color(enum.Enum):
        RED = 1

    Color.__module__, Color.__qualname__ = "shop", "Color"
    number = UUID("12345678-1234-5678-1234-567812345678")
    noon = datetime(2026, 1, 2, 12, 0, tzinfo=timezone(timedelta(hours=1)))
    keys: list[Any] = [42, -1, True, Decimal("1.50"), Decimal("-0.0"), date(2026, 1, 2), noon, Color.RED, ("a", b"b", None, (7,))]
    found = [business_id(key_from(next, iter([key]))) for key in keys]
    assert found == [
        b"vi2:2a",
        b"vi2:-1",
        b"vc4:True",
        b"vd5:15e-1",
        b"vd1:0",
        b"vdate10:2026-01-02",
        b"vdatetime25:2026-01-02T11:00:00+00:00",
        b"vm21:s4:shops5:Colors3:RED",
        b"vt22:s1:ab1:bc4:Nonet4:i1:7",
    ]
    assert business_id(number) == b"vu16:" + number.bytes


def test_a_claim_id_has_these_bytes() -> None:
    claim, number = Identity("ackwise", "billing", "charge").of(business_id("order-1"))
    assert claim.hex() == "4edd7aca716e42234d6878aebd1eec6c"
    assert number == int(claim.hex()[:16], 16) - (2**64 if claim[0] >= 128 else 0)
