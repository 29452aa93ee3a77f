"""What the Python of the driver needs where Spark runs functions of ours on executors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ackwise.middleware.errors import ConfigurationError

__all__ = ["require_pandas"]


def require_pandas() -> None:
    """Raise `ConfigurationError` unless pandas is there in a version that PySpark takes without a warning."""
    try:
        found = version("pandas")
    except PackageNotFoundError:
        found = ""
    if found.split(".")[:1] != ["2"] or tuple(map(int, found.split(".")[:2])) < (2, 2):
        there = f"pandas {found} is installed" if found else "it is not installed"
        raise ConfigurationError(
            f"Spark needs pandas 2.2 or later, below 3, to run Python on executors, and {there}: pip install 'ackwise[spark]'"
        )
