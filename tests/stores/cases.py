"""Tables inside of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*named: object) -> Iterator[None]:
    """Names the case of a table in whatever fails in it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the case of the table: {', '.join(map(repr, named))}")
        raise
