"""The metrics of `--follow` are what the page says, and what Prometheus reads."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ackwise.spark.follow.metrics import METRICS, Standing, write
from ackwise.spark.vocabulary import Verdict

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "follow.md"


def test_the_page_has_every_metric() -> None:
    rows = {f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in METRICS.items()}
    assert rows == {line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `ackwise_audit_")}


def test_prometheus_reads_the_file_and_every_verdict_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.prom"
    write(path, Standing(['/a "b"', "/c\\d\n"], 1000.5, 999.25, 1, 3, {Verdict.LOST: 3}, 2, 1, undelivered=True))
    families = list(text_string_to_metric_families(path.read_text("utf-8")))
    assert {(family.type, family.documentation) for family in families} == set(METRICS.values())
    samples = {(sample.name, sample.labels.get("verdict")): sample.value for family in families for sample in family.samples}
    assert samples["ackwise_audit_updated_timestamp_seconds", None] == 1000.5
    assert samples["ackwise_audit_alarms_total", None] == 2
    assert samples["ackwise_audit_undelivered_alarms", None] == 1
    found = {name: samples["ackwise_audit_verdicts", name] for name in Verdict.__members__}
    assert found == dict.fromkeys(Verdict.__members__, 0) | {"LOST": 3}
    assert {sample.labels["events"] for family in families for sample in family.samples} == {'/a "b",/c\\d\n'}
    assert [each.name for each in tmp_path.iterdir()] == ["audit.prom"]
