"""A plugin of pytest for `make check`: a test that starts a process fails, since it has to be marked `slow`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse processes while a test and its fixtures run; pytest-xdist starts its own before and after."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn")):
            patch.setattr(owner, name, _refusing(item.nodeid))
        return (yield)


def _refusing(test: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail(f"{test} starts a process: mark it `slow`, so that `make check` leaves it out", pytrace=False)

    return refuse
