"""Releases of the client libraries: a start refuses one that lacks a private name used here, and warns of an untested one.

The names are looked up in the classes at the start: otherwise a missing one might show only after hours, during a rebalance.
"""

from __future__ import annotations

import dis
import importlib.metadata
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.log import Log

log = Log()


class Release:
    """The release of `package` that Ackwise was written for: `0.14` is each 0.14.x."""

    def __init__(self, package: str, written_for: str) -> None:
        self.package = package
        self.written_for = written_for
        self._is_known = False

    @contextmanager
    def imports(self) -> Iterator[None]:
        """Raise `ConfigurationError` for what the block imports and the installed release does not have."""
        try:
            yield
        except ImportError as error:
            raise self.lacks([".".join(reversed(re.findall(r"'([\w.]+)'", str(error))))]) from error

    def require(self, names: Mapping[type[Any], str]) -> None:
        """Check once that the classes have these names: `_name`, or `_name(first,second)` if its parameters matter.

        Raises `ConfigurationError` for an installed release that lacks one. One that has all, and was not tested, is logged.
        """
        if self._is_known:
            return
        if lacking := [f"{kind.__name__}.{each}" for kind, wanted in names.items() for each in _lacking(kind, wanted.split())]:
            raise self.lacks(lacking)
        self._is_known = True
        if not f"{self._installed()}.".startswith(f"{self.written_for}."):
            log.warning(
                "client library version not tested",
                package=self.package,
                release=self._installed(),
                tested=self.written_for,
            )

    def _installed(self) -> str:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:  # a program that was packed into one file may leave that out
            return "of unknown release"

    def lacks(self, lacking: Iterable[str]) -> ConfigurationError:
        """Why the installed release, which lacks these, is refused."""
        return ConfigurationError(
            f"{self.package} {self._installed()} is installed and lacks {', '.join(lacking)}; this Ackwise was written for "
            f"{self.package} {self.written_for}: pip install '{self.package}=={self.written_for}.*'"
        )


def names_of(kind: type[Any]) -> set[str]:
    """The attributes of `kind`, and those that its `__init__` and its bases' give to an object."""
    found = set(dir(kind))
    for base in kind.__mro__:
        made = getattr(inspect.unwrap(vars(base).get("__init__", object)), "__code__", None)  # a tracer may have wrapped it
        found.update(each.argval for each in dis.get_instructions(made) if each.opname == "STORE_ATTR") if made else None
    return found


def _lacking(kind: type[Any], wanted: Iterable[str]) -> list[str]:
    names = names_of(kind)
    return [each for each in wanted if (name := each.partition("(")[0]) not in names or not _takes(kind, name, each)]


def _takes(kind: type[Any], name: str, wanted: str) -> bool:
    """Return whether the method takes the parameters that `wanted` has in brackets, if it has any; behind `...` may be others."""
    if wanted == name:
        return True
    takes = f"{name}({','.join([*inspect.signature(getattr(kind, name)).parameters][1:])})"
    return takes == wanted or (wanted.endswith(",...)") and takes.replace(")", ",").startswith(wanted.removesuffix("...)")))
