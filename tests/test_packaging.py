"""The four folders ship as one namespace and nothing else does; and the arrows between them are held."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tables import each

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDERS = ("middleware", "plugin", "spark", "stores", "testing")


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def modules() -> Iterator[str]:
    """Every Python file of the four folders, relative to the checkout."""
    for folder in FOLDERS:
        for file in (CHECKOUT / folder).rglob("*.py"):
            yield file.relative_to(CHECKOUT).as_posix()


def templates() -> Iterator[str]:
    """What pages are made of, and what runs inside of Redis, relative to the checkout."""
    yield "stores/redis/script.lua"
    for folder in (CHECKOUT / "spark" / "report" / "page" / "templates", CHECKOUT / "plugin" / "web" / "templates"):
        for file in folder.iterdir():
            yield file.relative_to(CHECKOUT).as_posix()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


def test_the_wheel_holds_the_modules_and_templates_of_the_four_folders_and_nothing_else(wheel: Path) -> None:
    about = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    metadata = {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    ours = {f"ackwise/{name}" for name in ("__init__.py", "errors.py", "schemas.py", "py.typed", *modules(), *templates())}
    assert set(zipfile.ZipFile(wheel).namelist()) == ours | metadata


def test_the_source_distribution_has_what_is_needed_to_build_and_to_test(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "py.typed",
        "__init__.py",
        "errors.py",
        "schemas.py",
        "tests/conftest.py",
        *modules(),
        *templates(),
    } <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "dist/"))]


def test_an_installed_ackwise_takes_no_other_name(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    question = "import importlib.util as i, ackwise; print(ackwise.__file__, *(i.find_spec(name) for name in 'FOLDERS'.split()))"
    place, *others = run(python, "-c", question.replace("FOLDERS", " ".join(FOLDERS)), cwd=tmp_path).split()
    assert Path(place).is_relative_to(tmp_path / "venv")
    assert others == ["None"] * len(FOLDERS)
    assert (tmp_path / "venv" / "bin" / "ackwise").exists()


@pytest.mark.slow  # installs a wheel, and starts pytest on it
@pytest.mark.nightly
def test_an_installed_ackwise_runs_its_suite_on_a_store_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "installed", wheel, cwd=tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from ackwise.stores.memory import MemoryStore\ndef new(place, clock): return MemoryStore(clock=clock)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:asyncio",
        "--ackwise-store=mine:new",
        "--ackwise-store-features=injected_clock=yes",
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, " passed" in done.stdout) == (0, True), done.stdout + done.stderr


def imported(file: Path) -> Iterator[str]:
    """The names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


@each("module", [name for name in modules() if name.startswith("middleware/")])
def test_middleware_imports_the_standard_library_only(module: str) -> None:
    foreign = {name for name in imported(CHECKOUT / module) if name.split(".")[0] not in sys.stdlib_module_names}
    assert not [name for name in foreign if not f"{name}.".startswith("ackwise.middleware.")]


#: What must not import what: a module that is planted, and its lines.
CROSSING = {
    "middleware/planted.py": ["pydantic", "ackwise.stores.memory"],
    "plugin/cli/planted.py": ["ackwise.stores.memory", "sqlite3", "faust", "mode", "pyspark"],
    "plugin/consumer/planted.py": ["ackwise.plugin.aiokafkahost"],
    "plugin/kafka/planted.py": ["ackwise.plugin.consumer.member"],
    "spark/planted.py": ["aiokafka"],
    "stores/planted.py": ["aiokafka", "faust", "ackwise.plugin.registry"],
    "stores/postgres/planted.py": ["ackwise.stores.mysql"],
    "stores/protocol/planted.py": ["ackwise.stores.sqlite"],
}


def test_each_import_that_crosses_a_border_is_found(tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    for name in ("__init__.py", *modules()):
        (tmp_path / "ackwise" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / "ackwise" / name)
    for module, targets in CROSSING.items():
        (tmp_path / "ackwise" / module).write_text("".join(f"import {target}\n" for target in targets))
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command, environment = [sys.executable, "-c", lint, "--no-cache"], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = set(re.findall(r"(ackwise\.\S+\.planted) -> (\S+)", " ".join(done.stdout.split())))
    crossing = {
        (f"ackwise.{module.removesuffix('.py').replace('/', '.')}", target) for module, targets in CROSSING.items() for target in targets
    }
    assert found == crossing
