"""The benchmarks are no part of the package: they are imported from the checkout, and left out where there is only the package."""

from __future__ import annotations

import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]

sys.path.append(str(_CHECKOUT))

collect_ignore_glob = [] if (_CHECKOUT / "benchmarks").is_dir() else ["test_*.py"]
