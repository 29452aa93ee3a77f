"""A check of a server's clock, before records that it calls forgotten are deleted for good."""

from __future__ import annotations

import time
from typing import Final

from ackwise.middleware.errors import StoreUnavailable

#: Seconds that the clocks of two machines may differ by; a record that is deleted this much too early had nearly ended.
_TOLERANCE: Final = 300.0


def refuse_jumped(server: float, address: str) -> None:
    """Raise `StoreUnavailable` if the `server`'s wall clock (seconds since 1970) is not that of this machine.

    One of them jumped, and nobody can tell which: what was deleted by a wrong clock is gone, and would run again.
    """
    ahead = server - time.time()
    if abs(ahead) > _TOLERANCE:
        way = "ahead of" if ahead > 0 else "behind"
        raise StoreUnavailable(
            f"{address}: its clock is {abs(ahead):.0f} s {way} that of this machine, so one of them is wrong; nothing was deleted; "
            "set it right, and clean up again"
        )
