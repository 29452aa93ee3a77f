"""`import ackwise` gives every public name, and loads none before it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tables import each

import ackwise


def for_type_checkers() -> dict[str, str]:
    """The names that the `if TYPE_CHECKING` block imports, and from where."""
    tree = ast.parse(Path(ackwise.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def test_each_name_that_type_checkers_know_is_there() -> None:
    assert for_type_checkers() == ackwise._HOMES
    assert [*for_type_checkers()] == ackwise.__all__


@each("name", ackwise.__all__)
def test_a_name_is_what_its_module_holds(name: str) -> None:
    assert getattr(ackwise, name) is getattr(sys.modules[ackwise._HOMES[name]], name)
    assert name in dir(ackwise)


def test_an_unknown_name_is_refused_with_the_ones_that_there_are() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Ap'; its names are Acked, Answer"):
        ackwise.Ap  # noqa: B018 - asking is the test


SPARK_ALONE = """
import importlib, pkgutil, sys
sys.modules["aiokafka"] = sys.modules["pydantic"] = None
import ackwise.spark
for module in pkgutil.walk_packages(ackwise.spark.__path__, "ackwise.spark."):
    importlib.import_module(module.name)
print(*(name for name in sys.modules if name.startswith("ackwise.plugin")))
"""


def test_spark_is_imported_without_a_kafka_client_and_without_pydantic() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SPARK_ALONE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_ackwise_loads_nothing_but_modules_of_python() -> None:
    question = """
import sys
before = set(sys.modules)  # a .pth file of the environment may have loaded something
import ackwise
print(*({name.split(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names))
print("asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ackwise", "False"]


@pytest.mark.slow  # starts a process that has no drivers
def test_a_program_that_reads_every_name_meets_import_errors_where_a_driver_is_missing() -> None:
    program = """
import sys
for driver in ("asyncmy", "asyncpg", "redis", "sqlalchemy"):
    sys.modules[driver] = None
import ackwise.stores
for name in dir(ackwise.stores):
    try:
        getattr(ackwise.stores, name)
    except ImportError as error:
        print(type(error).__name__)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert {*printed.split()} == {"PackageMissing"}
