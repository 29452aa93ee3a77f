"""Damaged and foreign event files: told, never a wrong verdict, never a traceback."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from tests.spark.commands.test_why import asked, told
from tests.spark.corruptions import KINDS, Look, corrupted, events_of, look_at, table_of, write_sealed
from tests.spark.reconciling import name_of, reconciled, summary
from tests.spark.robbed import CONFIG, accusations, night

from ackwise.middleware.events import EventCode
from ackwise.spark.events.disputed import disputed
from ackwise.spark.events.sources import as_written, exported
from ackwise.spark.reference.oracle import rule
from ackwise.stores.journal.parquet import content_of

NIGHT = night(3)
BY_NAME = {kind.name: kind for kind in KINDS}
#: Whole files with the same events, somewhere else or in another order.
HARMLESS = {"a copy in another folder", "rows twice", "rows in no order"}


def hurt(root: Path, *names: str) -> None:
    """Each of these happens to a file of its own."""
    files = write_sealed(NIGHT, root)
    for place, name in enumerate(names):
        BY_NAME[name].change(random.Random(1), [files[place]])


@pytest.mark.parametrize(("nights", "draws"), [(1, 1), pytest.param(4, 2, marks=pytest.mark.nightly)])
@pytest.mark.slow  # damages the files of several nights in each way
def test_nobody_is_accused_of_a_damaged_file_and_it_is_told(nights: int, draws: int) -> None:
    made = [night(3 + number) for number in range(nights)]
    honest = {each.group: rule([event for file in each.files for event in file], CONFIG).messages for each in made}
    for each, draw, kind in itertools.product(made, range(draws), KINDS):
        look, case = corrupted(each, kind, 1 + draw), (kind.name, each.group, draw)
        assert look.traceback == "", case
        assert look.ruling is None or accusations(look.ruling) == [], case
        if not look.told and not kind.may_differ:
            assert look.ruling is not None, case
            assert look.ruling.messages == honest[each.group], case
            assert kind.name in HARMLESS or "noise" in kind.name, case  # which may hit the name of the sum alone


def test_a_night_with_whole_files_is_as_it_was_written(tmp_path: Path) -> None:
    files = write_sealed(NIGHT, tmp_path)
    assert look_at(tmp_path) == Look(told=False, ruling=rule(events_of(files), CONFIG))


def test_events_with_the_same_number_and_other_content_are_named_with_both_files(tmp_path: Path) -> None:
    hurt(tmp_path, "the same numbers with other content")
    (found,) = disputed(exported(tmp_path).files)
    assert found.after == found.first + 1
    assert len({path.parent for path in found.files}) == 2
    assert f"event {found.first} of {found.writer:016x} is there with different content, in " in str(found)


def test_the_oracle_does_not_choose_between_two_contents_of_one_event() -> None:
    events = [event for file in NIGHT.files for event in file]
    (done,) = [event for event in events if event["event_type"] == 3][:1]
    other = {**done, "offset": done["offset"] + 1}
    for both in ([*events, other], [other, *events]):
        found = rule(both, CONFIG)
        assert found == rule([event for event in events if event is not done], CONFIG)


def test_a_file_that_is_known_is_not_read_again(tmp_path: Path) -> None:
    hurt(tmp_path, "a bit of the pages")
    there = exported(tmp_path)
    assert len(as_written(there).torn) == 1
    assert as_written(there, there.files).torn == {}


def test_why_names_what_it_left_out(tmp_path: Path) -> None:
    hurt(tmp_path, "a bit of the footer", "the same numbers with other content", "rows of nulls")
    result = asked("orders/0/3", tmp_path, "--as-of", "2026-01-01T01:00:00Z", "--grace", "1s")
    assert result.exit_code in (0, 3), result.output
    told = " ".join(result.output.split())
    for sentence in ("has a damaged footer", "has rows without writer, number, type or time", "is there with different content", "missing"):
        assert sentence in told


def test_an_event_with_two_contents_is_missing_for_reconcile_and_for_why(tmp_path: Path) -> None:
    file = next(file for file in NIGHT.files if any(event["event_type"] == EventCode.SUCCEEDED for event in file[:-1]))
    done = next(event for event in file[:-1] if event["event_type"] == EventCode.SUCCEEDED)
    root, other = tmp_path / "root", [event | {"offset": event["offset"] + 1} if event is done else event for event in file]
    write_sealed(NIGHT, root)
    copy = root / "events/dt=2026-01-01/hr=00" / name_of(file[0]["writer_id"], file[0]["seq"], file[-1]["seq"])
    copy.parent.mkdir(parents=True)
    copy.write_bytes(content_of([table_of(other)], copy.name))
    said = ("--as-of", "2026-01-01T01:00:00Z", "--grace", "1s")
    reconciled(root, "--out", tmp_path / "out", *said)
    found = summary(tmp_path / "out")
    assert (f"{done['writer_id']:016x}", done["seq"], done["seq"]) in {(h["writer"], h["first"], h["last"]) for h in found["holes"]}
    assert not {*found["verdicts"]} & {"LOST", "NEVER_SEEN", "STUCK", "RETRY_LOST", "PHANTOM_SUPPRESSED"}
    rest = rule([event for each in NIGHT.files for event in each if event is not done], CONFIG).messages
    for ((*_, partition), _, _, offset), (verdict, _) in rest.items():
        if (partition, offset) in ((done["partition"], done["offset"]), (done["partition"], done["offset"] + 1)):
            (message,) = told(f"orders/{partition}/{offset}", root, *said)["messages"]
            assert message["verdict"] == verdict.name, offset
    assert rest != rule([event for each in NIGHT.files for event in each], CONFIG).messages


HURT = [
    "a bit of the pages", "zeros in the footer", "rows of nulls", "the same numbers with other content", "an empty file",
    "attributes that are a list", "a time before all dates", "the year 9999",
]  # fmt: skip


@pytest.mark.usefixtures("engine")
def test_the_command_names_each_damaged_file_and_accuses_nobody(tmp_path: Path) -> None:
    hurt(tmp_path / "root", *HURT)
    result = reconciled(tmp_path / "root", "--out", tmp_path / "out", "--as-of", "2026-01-01T01:00:00Z", "--grace", "1s")
    assert result.exit_code in (1, 3), result.output  # somebody did run twice in this night
    found = summary(tmp_path / "out")
    assert {*found["verdicts"]} <= {
        "EXACTLY_ONCE",
        "MAYBE_TWICE",
        "MULTI_EXECUTED",
        "SKIPPED",
        "DUPLICATE_SUPPRESSED",
        "UNKNOWN_EXPORT_GAP",
    }
    sentences = " ".join(found["unreadable"])
    for sentence in ("wrong checksum", "rows without writer", "there with different content", "is torn", "damaged footer"):
        assert sentence in sentences
    assert any("the clock of" in warning for warning in found["warnings"])
