"""Settings that can't work are refused with a sentence."""

from __future__ import annotations

import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.config import ReconcileConfig


@pytest.mark.parametrize("values", [{"grace": -1.0}, {"as_of": float("nan")}, {"levels": (1.0, -2.0)}, {"lease": float("inf")}])
def test_a_negative_or_endless_setting_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(values))} of the reconciliation is"):
        ReconcileConfig(**values)  # type: ignore[arg-type]  # a table of keywords
