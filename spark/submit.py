"""The script for `spark-submit …/ackwise/spark/submit.py EVENTS…`, with the options of `ackwise reconcile`."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run `ackwise reconcile` in the session that `spark-submit` has begun, and leave with its exit code."""
    from ackwise.plugin.cli.main import main as ackwise

    sys.argv[1:1] = ["reconcile"]
    ackwise()


if __name__ == "__main__":
    # Python begins its search with the folder of the script, whose modules must be found through their package only.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    main()
