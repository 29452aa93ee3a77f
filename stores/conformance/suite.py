"""The tests that pytest collects for `--ackwise-store`: the conformance suite, on the store that the option names."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.stores.conformance.claims import Features, StoreConformance

_IN_REAL_TIME: Final = Features(injected_clock=False, lease=0.5, retention=1.5)
"""Default features: right for every store, but slow for one that can use the suite's clock."""

_WORDS: Final = {"yes": True, "no": False}


class Chosen(NamedTuple):
    """The store that is tested."""

    make: Callable[[Path, Callable[[], float]], ClaimStore]
    features: Features


CHOSEN: Final = pytest.StashKey[Chosen]()


class TestStore(StoreConformance):
    """The suite on the chosen store."""

    @pytest.fixture(autouse=True)
    def _choose(self, pytestconfig: pytest.Config) -> None:
        self._make, self.features = pytestconfig.stash[CHOSEN]

    def make(self, place: Path, clock: Callable[[], float]) -> ClaimStore:
        """Return the factory's store."""
        return self._make(place, clock)


def choose(target: str, features: str) -> Chosen:
    """The factory MODULE:FACTORY, and what it and the option say of its stores. Raises `pytest.UsageError`."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise pytest.UsageError(f"--ackwise-store is {target!r}; write MODULE:FACTORY, such as my_package.store:new_store")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise pytest.UsageError(
            f"--ackwise-store: there is no module {error.name!r} in {Path.cwd()} or among the installed packages"
        ) from None
    if not callable(getattr(module, name, None)):
        raise pytest.UsageError(f"--ackwise-store: module {module_name!r} has no function {name!r}; name one that takes place and clock")
    make, said = getattr(module, name), _said(features)
    default = Features() if said.get("injected_clock") else _IN_REAL_TIME
    return Chosen(make, dataclasses.replace(getattr(make, "features", default), **said))


def _said(features: str) -> dict[str, Any]:
    """The fields of `Features` that the option gives."""
    pairs = (pair.partition("=") for pair in features.split(",") if pair.strip())
    return {name.strip(): _value(name.strip(), text.strip()) for name, _, text in pairs}


def _value(name: str, text: str) -> bool | float:
    known = {field.name: field.default for field in dataclasses.fields(Features)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}" if near else f"there are {', '.join(known)}"
        raise pytest.UsageError(f"--ackwise-store-features: there is no feature {name!r}; {advice}")
    if isinstance(known[name], bool):
        if text not in _WORDS:
            raise pytest.UsageError(f"--ackwise-store-features: {name} is {text!r}; it can be yes or no")
        return _WORDS[text]
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise pytest.UsageError(f"--ackwise-store-features: {name} is {text!r}; give seconds, such as {name}=0.5")
    return seconds
