"""On a cluster: `spark-submit` with the wheel on a real standalone master with two workers, and what executors can't reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.histories import History
from tests.spark.reconciling import AS_OF, root_of

#: So little data that the time goes into starting and compiling.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "640m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}

CHECKOUT = Path(__file__).resolve().parents[2]


def installed(folder: Path) -> Path:
    """The package as the wheel of this checkout brings it."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", CHECKOUT]
    subprocess.run([str(part) for part in build], check=True, capture_output=True, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder / "installed", wheel]
    subprocess.run([str(part) for part in install], check=True, capture_output=True)
    return folder / "installed"


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.slow  # starts a master, two workers and what they compile
@pytest.mark.nightly
def test_spark_submit_reconciles_with_the_wheel_on_a_standalone_cluster(tmp_path: Path) -> None:
    from tests.spark.cluster import HOME, standalone

    package = installed(tmp_path)
    root = root_of(tmp_path / "root", History("g").say("w1", "RECEIVED_RANGE[0,4) 0:CS 1:CF W=6").say("w2", "4:CS 5:CS"))
    submit = [HOME / "bin" / "spark-submit", *(part for name, value in CONF.items() for part in ("--conf", f"{name}={value}"))]
    with standalone(tmp_path / "cluster") as master:
        script = [package / "ackwise" / "spark" / "submit.py", root, "--out", tmp_path / "out", "--as-of", AS_OF]
        for_executors = ("--conf", f"spark.executorEnv.PYTHONPATH={package}")
        command = [str(part) for part in (*submit, *for_executors, "--master", master, *script)]
        environment = {**os.environ, "PYTHONPATH": str(package), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["verdicts"] == {"LOST": 3, "EXACTLY_ONCE": 3}
    executors = {path.parents[3].name for path in (tmp_path / "cluster").glob("worker-*/work/*/*/stderr")}
    assert executors == {"worker-0", "worker-1"}
    assert not (tmp_path / "out" / ".reach").exists()
