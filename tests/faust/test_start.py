"""How a `faust worker` that can't start says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shared import SharedKafka

APP = """
import faust
from ackwise import Dedup

app = faust.App("refused", broker="kafka://BROKERS", datadir="data", web_enabled=False)
app.use(Dedup("redis://127.0.0.1:1"))
"""


@pytest.mark.slow  # the start of a worker of Faust takes seconds
def test_a_worker_that_can_not_start_ends_with_the_sentence_that_says_why(kafka: SharedKafka, tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(APP.replace("BROKERS", kafka.bootstrap))
    command = [sys.executable, "-m", "faust", "-A", "refused", "worker", "-l", "error", "--without-web"]
    patience = {**os.environ, "ACKWISE_START_TIMEOUT": "1s"}  # else it waits until the store is there
    ended = subprocess.run(command, cwd=tmp_path, env=patience, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert ended.stderr.splitlines()[-1] == "ackwise: redis://127.0.0.1:1: nothing listens there; start Redis, or correct host and port"
