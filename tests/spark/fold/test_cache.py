"""Events that were folded day by day, in any order, say what they say at once."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import DAY, NOW, SECOND, History, write_parquet, write_produced
from tests.spark.reconciling import AS_OF, name_of, reconciled, rows_of, summary

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message.disposition import OUR_REASONS
from ackwise.spark.events.sources import gathered
from ackwise.spark.fold.cache import opened
from ackwise.spark.fold.messages import REASONS
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.stores.journal import Journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HISTORIES = [case.history for case in CASES.values()] + [universe(number) for number in range(60)]


#: Half an hour before the end, which is within most universes.
SINCE = replace(CONFIG, since=NOW / SECOND - 1800)


@pytest.mark.nightly
@pytest.mark.slow  # waits for three folds of all histories on Spark
def test_events_folded_day_by_day_say_what_the_oracle_says_of_them_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Three days: one folded late, one not in the state, and some events in two."""
    from tests.spark.running import answer, evidence_of

    from ackwise.spark.events.schema import EVENT_SCHEMA, project
    from ackwise.spark.fold.partial import FoldedDeltas, delta_of, together
    from ackwise.spark.fold.written import written_in
    from ackwise.spark.judge.produced import read_produced
    from ackwise.spark.judging import conclude

    days, draw = list[list[dict[str, Any]]]([[], [], []]), random.Random(5)
    for history in HISTORIES:
        for event in history.events:
            for day in draw.sample(days, draw.choice([1, 1, 1, 2])):
                day.append(event)
    produced = write_produced(tmp_path / "produced.parquet", [row for history in HISTORIES for row in history.produced])
    with opened(tmp_path / "state", [tmp_path]) as state:
        deltas = []
        for number in (1, 0, 2):
            path = write_parquet(tmp_path / f"{number}.parquet", days[number])
            runs = written_in(evidence_of(path)).runs
            deltas.append(delta_of(spark, project(spark.read.schema(EVENT_SCHEMA).parquet(str(path))), runs))
            if number != 2:
                state.take(deltas[-1], f"2026-01-0{number + 1}", [path])
        folded, told = FoldedDeltas(spark, together([state.read(spark), deltas[-1]])), read_produced(spark, produced)
        whole, part = (answer(conclude(spark, folded, config, produced_rows=told)) for config in (CONFIG, SINCE))
    for config, found in ((CONFIG, whole), (SINCE, part)):
        expected = {each.group: rule(each.events, config, produced=each.produced) for each in HISTORIES}
        assert [group for group, ruling in expected.items() if found.rulings.get(group, Ruling(NOW)) != ruling] == []
        assert len(found.books) > len(HISTORIES) / 2
        assert [book for book in found.books if book.balance] == []
    assert sum(book.start for book in part.books) > sum(book.start for book in whole.books)


def test_each_of_our_reasons_has_a_number_which_is_its_place_in_the_list_that_a_state_notes() -> None:
    assert set(REASONS) == OUR_REASONS
    assert [*REASONS.values()] == [*range(1, len(OUR_REASONS) + 1)]


def days_of(root: Path, days: Sequence[Sequence[dict[str, Any]]], number: int = 1) -> Path:
    """A root with the events of each day in a folder of their own, from this day of December on, and a file for each writer."""
    for day, events in enumerate(days, start=number):
        for writer_id in {event["writer_id"] for event in events}:
            own = [event for event in events if event["writer_id"] == writer_id]
            seqs = [event["seq"] for event in own]
            write_parquet(root / "events" / f"dt=2025-12-{day:02d}" / "hr=00" / name_of(writer_id, min(seqs), max(seqs)), own)
    return root


def tables(out: Path) -> dict[str, list[str]]:
    rows = {name: rows_of(out / name) for name in ("verdicts", "missing", "logical")}
    return {name: sorted(json.dumps(row, default=str, sort_keys=True) for row in found) for name, found in rows.items()}


def conclusions(out: Path) -> dict[str, Any]:
    """`summary.json` without what names the run, its engine, or others; commands name its folder OUT."""
    said = json.loads(json.dumps(summary(out)).replace(str(out), "OUT"))
    found = {name: value for name, value in said.items() if name not in ("engine", "run_id", "output", "report", "plan")}
    return found | {"exhibits": found["exhibits"] | {"earlier": []}}


@pytest.mark.usefixtures("spark")
def test_a_run_with_a_state_writes_what_one_without_writes_and_folds_only_what_is_new(tmp_path: Path) -> None:
    """The one without is of the local engine, which leaves the same behind as Spark."""
    history = History("g").say("w1", "RECEIVED_RANGE[0,4) 0:CS 1:CFB 2:CFX 3:C")
    first = list(history.events)
    history.say("w2", "RECEIVED_RANGE[3,9) 3:CS 1@2:CS 4:CS 6:CF 7:CS W=9").skip("w2", 2).say("w2", "8:CS")
    root, state = tmp_path / "root", tmp_path / "state"
    days_of(root, [first])
    arguments: list[str | Path] = [root, "--as-of", AS_OF, "--json", "--engine"]
    assert reconciled(*arguments, "spark", "--state", state, "--out", tmp_path / "first").exit_code == 0
    folded = {path: path.stat().st_mtime_ns for path in state.glob("src_dt=*/**/*.parquet")}
    days_of(root, [first, history.events[len(first) :]])
    (state / ".unfinished-of-a-killed-run" / "messages").mkdir(parents=True)
    with_state = reconciled(*arguments, "spark", "--state", state, "--out", tmp_path / "with")
    without = reconciled(*arguments, "local", "--out", tmp_path / "without")
    assert with_state.exit_code == without.exit_code == 1, with_state.output
    assert tables(tmp_path / "with") == tables(tmp_path / "without")
    assert conclusions(tmp_path / "with") == conclusions(tmp_path / "without")
    after = {path: path.stat().st_mtime_ns for path in state.glob("src_dt=*/**/*.parquet")}
    assert folded.items() < after.items()
    names = {path.name for path in state.iterdir() if not path.name.startswith("open")}
    assert names == {"src_dt=2025-12-01", "src_dt=2025-12-02", "state.json"}


@pytest.mark.nightly
def test_with_a_state_only_what_may_matter_is_read_of_the_days_before(tmp_path: Path, spark: SparkSession) -> None:
    from tests.spark.running import answer

    from ackwise.spark.fold.cache import brought_up
    from ackwise.spark.judging import conclude

    config = replace(CONFIG, since=NOW / SECOND - 3600, retention=3600.0)
    history = History("g")
    for day, words in (
        (5, "0:C 100:CFB 200:CS 300:CS W=400"),
        (4, "400:CS 500:C 600:CS W=700"),
        (3, "700:CS 800:CS W=800"),
        (2, "900:CS 1000:CS W=800"),
    ):
        history.say(f"w{day}", words, ago=day * 86400 + 60, record_ts=NOW - day * DAY - 100 * SECOND)
    history.say("w1", "100@2:CS 300:CS", ago=100, record_ts=NOW - 5 * DAY - 100 * SECOND)
    history.say("w1", "1100:CS W=1101", ago=50, record_ts=NOW - 100 * SECOND)
    days: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in history.events:
        days[(event["event_ts"] - NOW) // DAY].append(event)
    assert len(days) == 6
    root = days_of(tmp_path / "root", [days[day] for day in sorted(days)[:-1]], number=22)
    rulings, read = [], list[str]()
    with opened(tmp_path / "state", [root]) as state:
        for _ in range(2):
            with gathered([root], tmp_path / "live") as evidence:
                folded = brought_up(spark, state, evidence)
                found = conclude(spark, folded, config)
                folded.keep_open(found.judged)
                rulings.append(answer(found).rulings["g"])
                read = folded.kept.inputFiles()
            days_of(root, [days[max(days)]], number=31)
            for gone in (tmp_path / "state").glob("src_dt=*/*/messages/rec_dt=2025-12-27"):
                shutil.rmtree(gone)  # what nobody asks for any more
    assert rulings == [rule([e for day in sorted(days)[:-1] for e in days[day]], config), rule(history.events, config)]
    assert {offset for *_, offset in rulings[-1].messages} == {0, 100, 300, 500, 800, 900, 1000, 1100}
    assert {path.split("rec_dt=")[1][:10] for path in read if "rec_dt=" in path} == {"2025-12-26", "2025-12-28", "2025-12-29", "2025-12-31"}


def test_a_file_that_comes_late_or_has_changed_is_folded(tmp_path: Path) -> None:
    name = "events-00000000000000ab-000000000000-000000000004.parquet"
    path = write_parquet(tmp_path / "events" / "dt=2026-01-01" / "hr=00" / name, History("g").say("w1", "0:CS").events)
    delta = tmp_path / "state" / "src_dt=2026-01-01" / "0123"
    with opened(tmp_path / "state", [tmp_path]) as state:
        assert state.lacking([path]) == {"2026-01-01": [path]}
        delta.mkdir(parents=True)
        assert state.lacking([path]) == {"2026-01-01": [path]}
        (delta / "files.json").write_text(json.dumps([f"{name} {path.stat().st_size}"]))
        assert state.lacking([path]) == {}
        late = path.with_name(name.replace("ab", "ac"))
        late.write_bytes(path.read_bytes())
        path.write_bytes(path.read_bytes() + b" ")
        assert state.lacking([path, late]) == {"2026-01-01": [path, late]}


def test_what_is_no_state_of_these_folders_and_this_version_is_refused(tmp_path: Path) -> None:
    state, roots = tmp_path / "state", [tmp_path / "a"]
    for more in (roots, [*roots, tmp_path / "b"]):
        with opened(state, more):
            pass
    whose = json.loads((state / "state.json").read_text())
    another = "was written by another version of Ackwise"
    strange = "is not what Ackwise wrote there"
    for said, sentence in (
        (json.dumps(whose), "is the state of .*/b, too; give that folder as well, or another one to --state"),
        (json.dumps({name: value for name, value in whose.items() if name != "roots"}), strange),
        (json.dumps({"format": 1, "reasons": [*REASONS]}), another),
        (json.dumps({"format": 4}), another),
        (json.dumps({"format": 4, "reasons": [*REASONS, "of a newer version"]}), another),
        (json.dumps({"format": 4, "reasons": [*REASONS][1:]}), another),
        ("[]", strange),
        ("{", strange),
    ):
        (state / "state.json").write_text(said)
        with pytest.raises(ConfigurationError, match=sentence):
            opened(state, roots).__enter__()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "photo.jpg").touch()
    with pytest.raises(ConfigurationError, match=r"holds 'photo.jpg' and is no state; give an empty folder to --state"):
        opened(tmp_path / "photos", roots).__enter__()
    delta = tmp_path / "torn" / "src_dt=2026-01-01" / "0"
    with opened(tmp_path / "torn", []) as opened_state:
        delta.mkdir(parents=True)
        for said in ("", "{}", "["):
            (delta / "files.json").write_text(said)
            with pytest.raises(ConfigurationError, match=r"files.json is not what Ackwise wrote there; give an empty folder to --state"):
                opened_state.lacking([])


def test_a_state_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path, []), pytest.raises(ConfigurationError, match=r"another run uses .*; wait for its end"):
        opened(tmp_path, []).__enter__()
    with opened(tmp_path, []) as state:
        assert state.deltas() == []


async def test_a_log_that_is_still_written_is_judged_and_not_kept(tmp_path: Path, spark: SparkSession) -> None:
    from ackwise.spark.fold.cache import brought_up

    root = tmp_path / "root"
    journal = Journal(root, cluster="c", group_id="g")
    await journal.open()
    try:
        journal.record(Event(EventCode.CLAIMED, "orders", 0, 7, "bill"))
        await journal.flush()
        with opened(tmp_path / "state", [root]) as state, gathered([root], tmp_path / "live") as evidence:
            messages = brought_up(spark, state, evidence).messages({journal.writer_id}, ())
            (state_of,) = messages.collect()
            assert state_of["live_claim"] == state_of["claim_ts"]
            assert state.deltas() == []
    finally:
        await journal.close()
