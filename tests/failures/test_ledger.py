"""The ledger that scenarios are judged by survives the kills that they make."""

from __future__ import annotations

from pathlib import Path

from tests.failures.ledger import Ledger


def test_a_line_that_a_kill_tore_is_no_fact_and_hurts_no_neighbour(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    first.ran(["a", "b"])
    with (tmp_path / "ledger").open("ab") as torn:
        torn.write(b'\n{"fact": "ran", "id": "c"}\n{"fact": "ran", "i')
    assert [fact["id"] for fact in second.read()] == ["a", "b", "c"]
    second.ran(["d"])
    second.write("started")
    assert [fact.get("id") for fact in second.read()] == ["a", "b", "c", "d", None]
    first.close()
    second.close()
