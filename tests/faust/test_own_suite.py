"""Faust's own tests answer the same, one by one, whether Ackwise is installed or not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeAlias
from xml.etree import ElementTree

import pytest
from tests.databases.server import Missing, skip_if_missing

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(2400)]  # runs Faust's own tests twice

CHECKOUT = Path(__file__).resolve().parent.parent.parent
FAUST = f"faust-streaming=={version('faust-streaming')}"

#: What Faust's own `scripts/tests` runs.
FOLDERS = ("tests/unit", "tests/functional", "tests/integration", "tests/meticulous", "tests/regression")

#: A broker and a Redis that happen to run on this machine are nobody's to test with: nothing listens here.
NOWHERE = {"FAUST_TEST_BROKER": "kafka://127.0.0.1:1", "FAUST_TEST_REDIS": "redis://127.0.0.1:1", "PYTEST_ADDOPTS": ""}

#: Of one app: does it have `use`?
HAS_USE = "import faust; print(hasattr(faust.App('one'), 'use'))"


class Case(NamedTuple):
    """The id of a test. Of the class and the file, JUnit's format keeps a dotted name."""

    place: str
    name: str


#: All that a test came to; an error in its teardown stands beside its own outcome.
Outcomes: TypeAlias = Mapping[Case, Counter[str]]


class Suite:
    """Faust's tests in a folder, against the Faust that is installed in an environment, both of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "environment" / "bin" / "python"
        self.source = folder / "source"
        self._runs = 0

    def install(self, *requirements: str | Path) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "-q", *requirements)

    def start(self, tests: Iterable[str] = FOLDERS) -> Running:
        self._runs += 1
        report = self.folder / f"report-{self._runs}.xml"
        options = ("-q", "--no-cov", "-p", "no:cacheprovider", f"--junitxml={report}")
        command: list[str | Path] = [self.python, "-m", "pytest", *options, *tests]
        with report.with_suffix(".txt").open("w") as output:
            process = subprocess.Popen(command, cwd=self.source, env={**os.environ, **NOWHERE}, stdout=output, stderr=subprocess.STDOUT)
        return Running(process, report)


class Running:
    """A run of the suite; `outcomes` waits for its end."""

    def __init__(self, process: subprocess.Popen[bytes], report: Path) -> None:
        self._process = process
        self._report = report

    def outcomes(self) -> Outcomes:
        ended = self._process.wait()
        assert ended in (0, 1), self._report.with_suffix(".txt").read_text()[-4000:]  # 1: some failed, which is Faust's to know
        outcomes: dict[Case, Counter[str]] = {}
        for case in ElementTree.parse(self._report).iter("testcase"):
            found = [part.tag for part in case if part.tag in ("failure", "error", "skipped")] or ["passed"]
            outcomes.setdefault(Case(case.attrib["classname"], case.attrib["name"]), Counter()).update(found)
        return outcomes


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Faust as the package index has it, with what its tests require."""
    suite = Suite(tmp_path_factory.mktemp("stock"))
    with skip_if_missing("the source distribution of Faust"):
        unpack(download(suite.folder), suite.source)
    run(sys.executable, "-m", "venv", "--without-pip", suite.folder / "environment")
    suite.install(FAUST, "-r", suite.source / "requirements" / "test.txt")
    return suite


def download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=faust-streaming", "--dest", str(folder), FAUST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"pip could not download {FAUST}: {done.stderr.strip()[-300:]}")
    (archive,) = folder.glob("*.tar.gz")
    return archive


def unpack(archive: Path, source: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(archive.parent, filter="data")
    (archive.parent / archive.name.removesuffix(".tar.gz")).rename(source)
    shutil.rmtree(source / "faust")  # the tests are to import what is installed, which is compiled


@pytest.fixture(scope="module")
def beside_ackwise(stock: Suite, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """The same, and then Ackwise was installed as users do it, from its wheel."""
    suite = Suite(tmp_path_factory.mktemp("beside-ackwise"))
    shutil.copytree(stock.folder, suite.folder, symlinks=True, dirs_exist_ok=True)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", suite.folder, CHECKOUT)
    (wheel,) = suite.folder.glob("ackwise-*.whl")
    suite.install(f"{wheel}[faust]")
    return suite


def test_an_app_has_use_where_ackwise_is_installed_and_nowhere_else(stock: Suite, beside_ackwise: Suite) -> None:
    assert [run(suite.python, "-c", HAS_USE).strip() for suite in (stock, beside_ackwise)] == ["False", "True"]


def test_the_suite_of_faust_gives_the_same_result_with_ackwise_installed_and_without(stock: Suite, beside_ackwise: Suite) -> None:
    without, with_ackwise = stock.start(), beside_ackwise.start()  # at once: they mostly wait
    before, after = without.outcomes(), with_ackwise.outcomes()
    assert Counter(outcome for found in before.values() for outcome in found.elements())["passed"] > 2000
    differing = {test for test in before if before[test] != after.get(test)}
    if differing:
        # Some ids hold the time of day, and a test may hang on it: not ours is what stock Faust answers otherwise when asked again.
        again = stock.start(files(differing, stock.source)).outcomes()
        differing -= {test for test in differing if before[test] != again.get(test)}
    assert {test: (before[test], after.get(test)) for test in differing} == {}
    assert len(after) == len(before)


def files(tests: Iterable[Case], source: Path) -> set[str]:
    """The files that tests are in: of the dotted name of a class or a file, as much as is a file."""
    found = set()
    for test in tests:
        parts = test.place.split(".")
        candidates = (Path(*parts[:length]).with_suffix(".py") for length in range(len(parts), 0, -1))
        found.add(str(next(file for file in candidates if (source / file).is_file())))
    return found
