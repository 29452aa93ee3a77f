"""A place in which the snippets of a page run."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module for the blocks of one page, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module
