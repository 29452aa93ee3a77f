"""Places in which the snippets of pages run."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest


@pytest.fixture
def new_place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[], types.ModuleType]:
    """Goes to an empty folder, and returns a module for the blocks of one page."""

    def go() -> types.ModuleType:
        monkeypatch.chdir(tmp_path_factory.mktemp("page"))
        module = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return go


@pytest.fixture
def here(new_place: Callable[[], types.ModuleType]) -> types.ModuleType:
    """A module for the blocks of one page, in an empty folder."""
    return new_place()
