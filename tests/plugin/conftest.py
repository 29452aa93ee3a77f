"""What makes the tests of the plugin fast."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _signatures_of_commands_are_read_once() -> Iterator[None]:
    """Typer reads the signatures of all forty commands for each command line, which takes longer than most commands."""
    from typer.utils import get_params_from_function

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_params_from_function", functools.cache(get_params_from_function))
        yield
