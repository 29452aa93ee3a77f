"""Private names of the client libraries: each has one home in the library, and nobody else uses one."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from ackwise.plugin.kafka.releases import names_of

CHECKOUT: Final = Path(__file__).resolve().parents[1]

#: Where the private names of a library are used: attributes of its objects, methods of its classes, modules that it does not document.
HOMES: Final = {
    "aiokafka": (
        "plugin/kafka/aiokafkainternals.py",
        "plugin/kafka/recordbatches.py",
        "plugin/kafka/protocolrequests.py",
        "plugin/kafka/fetchbuffer.py",
    ),
    "faust": ("plugin/faust/faustinternals.py",),
    "mode": ("plugin/faust/faustinternals.py",),
}

#: Modules that anybody may import from, less their names that start with `_`.
PUBLIC: Final = re.compile(
    r"aiokafka(\.(abc|admin|admin\.config_resource|codec|errors|helpers|partitioner|structs))?"
    r"|faust(?!\.transport)(\..*)?|mode(\.utils\..*)?"
)

#: What a name of theirs means elsewhere: it is of a named tuple, of the standard library, or of our object of another module.
OTHERS: Final = {"_replace", "_asdict", "_fields", "_make", "os._exit", "threads._register_atexit", "names._set", "other._name"}

#: An import of theirs, and what may be a private name of an object; parsing all files would take seconds.
IMPORT: Final = re.compile(r"^ *(import|from) (aiokafka|faust|mode)\b", re.MULTILINE)
ACCESS: Final = re.compile(r"""(?:(?<!self)(?<!cls)(?<!super\(\))\.|["'])(_[a-z]\w*)""")


def library() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("middleware", "plugin", "spark", "stores", "testing"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            text = path.read_text("utf-8")
            if IMPORT.search(text) or not theirs().keys().isdisjoint(ACCESS.findall(text)):
                yield str(path.relative_to(CHECKOUT)), ast.parse(text)


@cache
def theirs() -> dict[str, set[str]]:
    """Each private name that a library gives to its objects, and the libraries that do."""
    given = re.compile(r"\bdef (_[a-z]\w*)|\bself\.(_[a-z]\w*)|^    (_[a-z]\w*)\s*[:=]", re.MULTILINE | re.IGNORECASE)
    found: dict[str, set[str]] = defaultdict(set)
    for package in HOMES:
        for path in Path(str(importlib.import_module(package).__file__)).parent.rglob("*.py"):
            for names in given.findall(path.read_text("utf-8", errors="replace")):
                found["".join(names)].add(package)
    return found


def uses(tree: ast.Module) -> Iterator[tuple[int, str, set[str]]]:
    """Line and text of each use of a private name, and the libraries that have it."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                package = module.partition(".")[0]
                for each in names if package in HOMES else ():
                    if not PUBLIC.fullmatch(module) or each.name.startswith("_"):
                        yield node.lineno, f"from {module} import {each.name}", {package}
            case ast.Import(names=names):
                for each in names:
                    if (package := each.name.partition(".")[0]) in HOMES and not PUBLIC.fullmatch(each.name):
                        yield node.lineno, f"import {each.name}", {package}
            case ast.Attribute(value=owner, attr=name) if name in theirs() and not _is_ours(owner):
                if not {name, ast.unparse(node)} & OTHERS:
                    yield node.lineno, ast.unparse(node), theirs()[name]
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, ast.Constant(value=str(name)), *_]):
                if name in theirs():
                    yield node.lineno, ast.unparse(node), theirs()[name]
            case ast.ClassDef():
                yield from _inherited(node, tree)


def _is_ours(owner: ast.expr) -> bool:
    """Whether it is the object itself; what it inherits from a library is found in its class."""
    return (isinstance(owner, ast.Name) and owner.id in ("self", "cls")) or (
        isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    )


def _inherited(kind: ast.ClassDef, tree: ast.Module) -> Iterator[tuple[int, str, set[str]]]:
    """What a class uses or replaces of the private names that it inherits from a library."""
    for base in map(ast.unparse, kind.bases):
        found = _imported(base.partition("[")[0], tree)
        bases = [each for each in getattr(found, "__mro__", ()) if _library_of(each) in HOMES]
        names = {name for each in bases for name in names_of(each)} & theirs().keys()
        for node in ast.walk(kind) if names else ():
            if isinstance(node, ast.Attribute) and _is_ours(node.value) and node.attr in names:
                yield node.lineno, f"{ast.unparse(node)} of {base}", theirs()[node.attr]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
                yield node.lineno, f"def {node.name} in place of that of {base}", theirs()[node.name]


def _library_of(kind: type[Any]) -> str:
    return kind.__module__.partition(".")[0]


def _imported(name: str, tree: ast.Module) -> Any:
    """What a module imports under `name`, as far as that is of a library, or of a home of its private names."""
    homes = {home.removesuffix(".py").replace("/", ".") for paths in HOMES.values() for home in paths}
    first, _, rest = name.partition(".")
    for node in tree.body:
        if isinstance(node, ast.Import) and rest and first in HOMES and any(each.name == first for each in node.names):
            return getattr(importlib.import_module(first), rest, None)
        if isinstance(node, ast.ImportFrom) and (module := node.module) and any(each.name == name for each in node.names):
            is_known = module.partition(".")[0] in HOMES or module.removeprefix("ackwise.") in homes
            return getattr(importlib.import_module(module), name, None) if is_known else None
    return None


def test_private_names_of_the_client_libraries_are_used_in_their_homes_alone() -> None:
    strays = [
        f"{path}:{line}: {text} is private to {' or '.join(sorted(packages))}; call a function of {' or '.join(homes)}, or add one there"
        for path, tree in library()
        for line, text, packages in uses(tree)
        if path not in (homes := sorted({home for package in packages for home in HOMES[package]}))
    ]
    assert not strays, "\n".join(strays)
