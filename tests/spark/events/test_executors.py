"""`--check-cluster`: executors that lack something are named with it, before anything is judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.histories import History
from tests.spark.reconciling import reconciled, root_of

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.events import executors


def root_in(folder: Path) -> Path:
    return root_of(folder, History("g").say("w1", "RECEIVED_RANGE[0,3) 0:CS 1:CS W=3"))


def facts(**changes: Any) -> dict[str, Any]:
    found = {"host": "h", "process": 1, "python": "3.11.2", "executable": "/py", "missing": {}, "unread": {}}
    return {**found, "versions": {"ackwise": "0.2", "duckdb": "1.3.0", "pandas": "2.2.0", "pyarrow": "18.0.0"}, **changes}


def test_each_thing_that_an_executor_lacks_is_a_clause_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.11.9")
    for changes, clause in (
        ({}, None),
        ({"missing": {"pandas": "ModuleNotFoundError: No module named 'pandas'"}}, "pandas can't be imported by /py (ModuleNotFoundError"),
        ({"versions": {"pandas": "2.1.4"}}, "pandas is 2.1.4 in /py, and must be 2.2 or later, below 3"),
        ({"versions": {"pandas": "3.0.0"}}, "pandas is 3.0.0 in /py, and must be 2.2 or later, below 3"),
        ({"versions": {"duckdb": "1.4.0"}}, "duckdb is 1.4.0 in /py, and 1.3.0 on the driver"),
        ({"versions": {"ackwise": "0.1"}}, "ackwise is 0.1 in /py, and 0.2 on the driver"),
        ({"python": "3.12.9"}, "Python is 3.12.9 in /py, and 3.11.9 on the driver"),
        ({"unread": {"/x": "No such file or directory"}}, "the file /x can't be read (No such file or directory)"),
    ):
        found = executors._problems(facts(**changes), {"ackwise": "0.2", "duckdb": "1.3.0"})
        assert len(found) == (clause is not None)
        assert clause is None or found[0].startswith(clause)


def test_the_local_engine_has_no_executors(tmp_path: Path) -> None:
    result = reconciled(root_in(tmp_path / "root"), "--check-cluster", "--engine", "local")
    assert str(result.exception) == "--check-cluster is about Spark's executors; leave --engine local out"


@pytest.mark.spark
@pytest.mark.slow  # starts Spark, and Python in its tasks
def test_executors_that_have_everything_are_counted_and_those_that_lack_something_are_named(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_in(tmp_path / "root")
    result = reconciled(root, "--check-cluster", "--engine", "spark")
    assert result.exit_code == 0, result.exception
    assert result.output.splitlines()[-1].startswith("1 executor has what it needs on ")
    assert f": Python {sys.version.split()[0]} with ackwise" in result.output
    assert "16 tasks read the event files" in result.output
    assert sorted(path.name for path in root.iterdir()) == ["events"]
    monkeypatch.setattr(executors, "NEEDED", {**executors.NEEDED, "no_such_package": ("1", "")})
    with pytest.raises(
        ConfigurationError, match=r"no_such_package can't be imported by .*No module named.* on .*--archives .*PYSPARK_PYTHON"
    ):
        executors.check_executors(spark, [])
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match=r"the file /gone/a.parquet can't be read .*; mount the folders under the same path"):
        executors.check_executors(spark, [Path("/gone/a.parquet")])


@pytest.mark.spark
@pytest.mark.slow  # starts Spark, and Python in its tasks
@pytest.mark.nightly  # a Spark of its own
def test_a_python_that_is_not_there_is_named_and_the_exit_code_is_two(tmp_path: Path) -> None:
    root = root_in(tmp_path / "root")
    command = [sys.executable, "-m", "ackwise.plugin.cli", "reconcile", str(root), "--check-cluster"]
    environment = {**os.environ, "PYSPARK_PYTHON": "/no/python/on/executors"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert 'error the executors can\'t run Python with Ackwise: Cannot run program "/no/python/on/executors"' in last
    assert "PYSPARK_PYTHON" in last


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.slow  # starts Spark, and Python in its tasks
@pytest.mark.nightly  # a master and two workers
def test_both_executors_of_a_cluster_are_asked(tmp_path: Path) -> None:
    from tests.spark.cluster import standalone

    root = root_in(tmp_path / "root")
    command = [
        sys.executable,
        "-m",
        "ackwise.plugin.cli",
        "reconcile",
        str(root),
        "--check-cluster",
        "--conf",
        "spark.executor.memory=640m",
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with standalone(tmp_path / "cluster") as master:
        done = subprocess.run([*command, "--master", master], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 executors have what they need on ")
