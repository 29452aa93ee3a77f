"""`F` and `Window`, from which the job builds its columns: PySpark's, or those of the local engine while it computes.

The rules of the job are written once, against the part of PySpark's interface that both have. So nothing is computed with
`F` while a module is imported: the engine is chosen later.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData, Row, SparkSession, Window
    from pyspark.sql import functions as F

__all__ = ["Column", "DataFrame", "F", "GroupedData", "Row", "SparkSession", "Window", "computed_by"]

#: The modules that have the functions and `Window`.
_SPARK: Final = ("pyspark.sql.functions", "pyspark.sql")
_engine: ContextVar[tuple[str, str]] = ContextVar("engine", default=_SPARK)


@contextmanager
def computed_by(functions: str, window: str) -> Iterator[None]:
    """Build columns with the functions of one module and the `Window` of another, by name, while the block runs."""
    token = _engine.set((functions, window))
    try:
        yield
    finally:
        _engine.reset(token)


if not TYPE_CHECKING:

    class _Chosen:
        """Attributes of the engine that computes at the moment."""

        def __init__(self, find: Any) -> None:
            self._find = find

        def __getattr__(self, name: str) -> Any:
            return getattr(self._find(), name)

    F = _Chosen(lambda: importlib.import_module(_engine.get()[0]))
    Window = _Chosen(lambda: importlib.import_module(_engine.get()[1]).Window)
    # Names of types, in annotations only.
    Column = DataFrame = GroupedData = Row = SparkSession = Any
