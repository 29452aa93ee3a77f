"""A twin: a copy of the library in which one line that keeps a promise is removed or inverted."""

from __future__ import annotations

import ast
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "twins"


@dataclass(frozen=True, slots=True)
class Twin:
    """One sabotage: where it is, what it breaks, and which tests most probably notice it."""

    name: str
    #: What users were promised, as one sentence.
    promise: str
    #: The page under `docs/` that promises it.
    page: str
    #: Path of the file from the checkout.
    module: str
    #: `Class.method` or `function`; empty for text outside of functions, and in files that are not Python.
    function: str
    text: str
    instead: str
    #: Files of tests, cheapest first. A trial starts with them.
    tests: tuple[str, ...]

    def rewrite(self, checkout: Path = CHECKOUT) -> str:
        """Return the file's text as the twin has it. Raises `LookupError` if the text is not in the function exactly once."""
        source = (checkout / self.module).read_text("utf-8")
        start, end = self._span(source)
        part = source[start:end]
        if (found := part.count(self.text)) != 1:
            place = f"{self.function} of {self.module}" if self.function else self.module
            raise LookupError(f"twin {self.name}: its text occurs {found} times in {place}; correct it in tests/sabotage/twins/")
        return source[:start] + part.replace(self.text, self.instead) + source[end:]

    def _span(self, source: str) -> tuple[int, int]:
        if not self.function:
            return 0, len(source)
        node: ast.AST | None = ast.parse(source)
        for name in self.function.split("."):
            node = next((child for child in ast.walk(node or ast.Pass()) if _is_named(child, name)), None)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            raise LookupError(f"twin {self.name}: {self.module} has no {self.function}; correct it in tests/sabotage/twins/")
        lines = source.splitlines(keepends=True)
        return sum(map(len, lines[: node.lineno - 1])), sum(map(len, lines[: node.end_lineno]))


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name


def read_twins() -> list[Twin]:
    """Return all twins, in the order of their files. Raises `ValueError` where two have one name."""
    rows = [row for path in sorted(LISTS.glob("*.toml")) for row in tomllib.loads(path.read_text("utf-8"))["twin"]]
    twins = [Twin(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    names = [twin.name for twin in twins]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"more than one twin is called {', '.join(doubled)}; rename them in tests/sabotage/twins/")
    return twins


def write_copy(twin: Twin | None, folder: Path) -> None:
    """Make the package `ackwise` in `folder`, with the one line of `twin` changed.

    Only the changed top folder is copied, with what was compiled of it; the others are links.
    """
    package = folder / "ackwise"
    package.mkdir(parents=True)
    changed = twin.module.split("/")[0] if twin else ""
    for entry in CHECKOUT.iterdir():
        if entry.name == changed:
            shutil.copytree(entry, package / entry.name)
        elif not entry.name.startswith("."):
            (package / entry.name).symlink_to(entry)
    if twin:
        (package / twin.module).write_text(twin.rewrite(), "utf-8")
