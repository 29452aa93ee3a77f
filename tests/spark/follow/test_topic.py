"""`ackwise reconcile --follow --topic`: the audit of what was published to a topic, while more is."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.shared import SharedKafka
from tests.spark.follow.test_following import LOST
from tests.spark.histories import History
from tests.spark.topic.test_topic import export, make, sent

TOPIC = "followed-events"


@contextmanager
def following(root: Path, source: str) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "ackwise.plugin.cli", "reconcile", str(root), "--follow", "--topic", source, "--every", "1s", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def audited(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    assert process.stderr is not None
    yield from map(json.loads, process.stdout)
    raise AssertionError(process.stderr.read())


@pytest.mark.nightly
@pytest.mark.slow  # waits for several runs of the whole job on Spark
@pytest.mark.spark
@pytest.mark.kafka
def test_what_is_published_is_in_the_next_audit_and_what_mends_a_finding_ends_it(kafka: SharedKafka, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    asyncio.run(make(kafka.bootstrap, TOPIC))
    export(there, History("g").say("w1", LOST))
    sent(kafka.bootstrap, there, TOPIC)
    with following(back, f"{kafka.bootstrap}/{TOPIC}") as process:
        updates = audited(process)
        first = next(updates)
        assert [each["verdict"] for each in first["new"]] == ["LOST"]
        export(there, History("g").say("w1", LOST).say("w2", "1:CS"))
        sent(kafka.bootstrap, there, TOPIC)
        mended = next(each for each in updates if each.get("gone"))
        assert [each["verdict"] for each in mended["gone"]] == ["LOST"]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert json.loads((back / "runs/follow/summary.json").read_text())["verdicts"] == {"EXACTLY_ONCE": 2}
