"""`ackwise why` from the outside: what it prints, its exit codes, and what it says when it can't. Starts no Spark.

After a wanted change, `python -m tests.spark.commands.test_why` writes the golden answers anew.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.spark.cases import CASES
from tests.spark.commands.test_reconcile import sending
from tests.spark.histories import NOW, SECOND, History
from tests.spark.reconciling import AS_OF, BLOCKED, root_of
from typer.testing import CliRunner, Result

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import Event, EventCode, RunEvents
from ackwise.middleware.message.keys import Identity, business_id, message_id
from ackwise.spark.advice import advice_on
from ackwise.spark.commands.why import why
from ackwise.spark.vocabulary import ANOMALIES, MEANINGS, Flag, Verdict
from ackwise.spark.why.reasons import rule_of
from ackwise.stores.journal import Journal

GOLDEN = Path(__file__).with_name("golden")


def asked(*arguments: str | Path) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(why)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def told(*arguments: str | Path) -> dict[str, Any]:
    result = asked(*arguments, "--json")
    assert result.stdout, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["exit_code"] == result.exit_code
    return found


def refusal(*arguments: str | Path) -> str:
    result = asked(*arguments)
    assert isinstance(result.exception, AckwiseError), result.exception
    assert result.stdout == ""
    assert "\n" not in str(result.exception)
    return str(result.exception)


def night(group: str = "g") -> History:
    """w1 fails offset 1, claims offset 2 and dies; w2 goes on, and loses 3."""
    history = History(group).assign("w1", 0, at=NOW - 3700 * SECOND, from_commit=False)
    history.start("w1", at=NOW - 3701 * SECOND, host="shop-1", pid=7)
    history.say("w1", "RECEIVED_RANGE[0,4) 0:CS", ago=3600, key="k")
    history.say("w1", "1:CFB", ago=3599, level=3, due_ts=NOW - 3589 * SECOND, error="ValueError").say("w1", "W=2 2:C", ago=3598)
    history.start("w2", at=NOW - 3001 * SECOND, host="shop-2", pid=8).assign("w2", 2, at=NOW - 3000 * SECOND)
    history.say("w2", "RECEIVED_RANGE[2,6)", ago=2999)
    history.say("w2", "2:CS", ago=2998, took_unreleased=True, lost=1, duration_us=250_000).say("w2", "3:CF", ago=2997, error="KeyError")
    history.say("w2", "5:D", ago=2996, key="k").say("w2", "W=6", ago=2990)
    history.say("w2", "1@2:CS", ago=2980, duration_us=1500)
    return history.add("w2", EventCode.SESSION_END, at=NOW - 60 * SECOND)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_of(tmp_path / "root", night())


def test_what_is_printed_of_a_night_is_as_it_was(root: Path) -> None:
    for offset, code in enumerate((0, 0, 0, 1, 1, 0)):
        result = asked(f"orders/0/{offset}", root, "--as-of", AS_OF)
        assert result.exit_code == code, result.exception
        anew = "if that is wanted: python -m tests.spark.commands.test_why"
        assert trimmed(result.stdout) == (GOLDEN / f"why-{offset}.txt").read_text(), anew


def trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_a_copy_leads_to_its_origin(root: Path) -> None:
    found = told("g.retry/0/1", root, "--as-of", AS_OF)
    assert found["found"] == ["g.retry/0/1 is where a copy of orders/0/1 was read, as attempt 2"]
    assert [(message["topic"], message["offset"], message["verdict"]) for message in found["messages"]] == [("orders", 1, "EXACTLY_ONCE")]


def test_a_message_id_tells_the_life_from_the_insert_to_the_effect_and_a_record_how_it_came_to_be_sent(tmp_path: Path) -> None:
    root, box = root_of(tmp_path / "root", sending()), "postgresql://db/shop"
    for asked_for, state, verdicts, steps in (
        ("m-0", "SENT", ["EXACTLY_ONCE"], ["sent, acknowledged at orders/0/0"]),
        ("m-1", "SENT", ["LOST_PRODUCED"], [f"stored: row 1 of {box}", f"sent: row 1 of {box}, acknowledged at orders/0/1"]),
        ("m-2", "NOT_PUBLISHED", [], [f"stored: row 2 of {box}"]),
        ("m-3", "PRODUCE_FAILED", [], ["not sent, and its sender had an error"]),
        ("m-7", "PARKED", [], [f"parked: row 7 of {box}"]),
    ):
        found = told(asked_for, root, "--as-of", AS_OF)
        (sent,) = found["sent"]
        assert (sent["message_id"], sent["state"], [step["what"] for step in sent["steps"]]) == (asked_for, state, steps)
        assert [message["verdict"] for message in found["messages"]] == verdicts, asked_for
        assert found["exit_code"] == (state == "NOT_PUBLISHED" or "LOST_PRODUCED" in verdicts), asked_for
        if verdicts:
            of_record = told(f"orders/0/{asked_for[-1]}", root, "--as-of", AS_OF)
            assert [sent["message_id"] for sent in of_record["sent"]] == [asked_for]
            assert [message["verdict"] for message in of_record["messages"]] == verdicts


def test_a_message_that_a_handler_published_names_what_it_was_published_for(tmp_path: Path) -> None:
    history = History("g").say("w1", "0:CS W=1").send("w1", EventCode.PRODUCED, "p", 9, ago=30, origin="orders/0/0")
    result = asked("p", root_of(tmp_path / "root", history), "--as-of", AS_OF)
    assert "published by handler None for orders/0/0" not in result.stdout
    assert "acknowledged at orders/0/9, published for orders/0/0" in result.stdout


def test_a_late_success_is_told_as_such(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:COBY", exec_id=5).say("w1", "0@2:D W=1"))
    (message,) = told("orders/0/0", root, "--as-of", AS_OF)["messages"]
    assert (message["verdict"], message["flags"]) == ("EXACTLY_ONCE", ["HAD_FAILURES", "RETRIED", "DUP_AND_OK", "TIMED_OUT"])
    steps = {step["event"]: step["what"] for step in message["steps"]}
    assert steps["FAILED"] == "run 1 failed: ConsumeTimeout"
    assert steps["LATE_SUCCESS"] == "run 1 succeeded, after its consume timeout"


def test_attempts_in_place_are_told_as_such_with_their_time(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CICICS W=1", ago=3600, error="ValueError"))
    (message,) = told("orders/0/0", root, "--as-of", AS_OF)["messages"]
    assert (message["verdict"], message["flags"]) == ("EXACTLY_ONCE", ["HAD_FAILURES"])
    assert [step["what"] for step in message["steps"]][:4] == [
        "claimed for run 1",
        "run 1 failed: ValueError; attempt 2 in place, due 10.0 s later at 23:00:10.001",
        "claimed for run 2",
        "run 2 failed: ValueError; attempt 3 in place, due 10.0 s later at 23:00:10.003",
    ]


def test_each_group_that_read_a_record_tells_its_own_story(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", night())
    root_of(root, History("mail").say("m1", "RECEIVED_RANGE[0,1) 0:CS RECEIVED_RANGE[2,3) 2:CS W=3"))
    found = told("orders/0/1", root, "--as-of", AS_OF)
    assert [(message["group"], message["verdict"]) for message in found["messages"]] == [("g", "EXACTLY_ONCE"), ("mail", "NEVER_SEEN")]
    assert found["exit_code"] == 1


def test_an_offset_without_a_message_is_told_from_its_partition(tmp_path: Path) -> None:
    for place, (word, offset, verdict, code) in enumerate([
        ("GAP[1,3)", 1, "GAP", 0), ("SEEK[1,3)", 2, "SKIPPED_BY_SEEK", 0), ("RECEIVED_RANGE[1,3)", 1, "LOST", 1),
        ("0:S", 1, "NEVER_SEEN", 1), ("3:CS W=4 RECEIVED_RANGE[4,9)", 6, "PENDING", 0),
    ]):  # fmt: skip
        root = root_of(tmp_path / f"{place}", History("g").say("w1", f"0:CS {word} 3:CS W=4"))
        found = told(f"orders/0/{offset}", root, "--as-of", AS_OF)
        assert ([message["verdict"] for message in found["messages"]], found["exit_code"]) == ([verdict], code)
        assert verdict == "PENDING" or "COMMITTED" in [step["event"] for step in found["messages"][0]["steps"]]


def test_missing_events_make_it_unknown_and_are_named(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1 1:CF").skip("w1", 3).say("w1", "2:CS W=3"))
    found = told("orders/0/1", root, "--as-of", AS_OF)
    assert ([message["verdict"] for message in found["messages"]], found["exit_code"]) == (["UNKNOWN_EXPORT_GAP"], 3)
    assert [sentence.split(" of worker ")[0] for sentence in found["missing"]] == ["events are missing: 5 to 7"]


async def test_a_key_is_found_in_a_log_that_is_still_written_with_the_namespace_of_its_session(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with journal(root, {"namespace": "shop"}, namespace="shop"):
        found = told("order-7", root)
        assert [(message["offset"], message["verdict"]) for message in found["messages"]] == [(7, "EXACTLY_ONCE")]
        assert found["found"] == ["'order-7' is the business key of records of handler 'bill' in group 'billing', in the namespace shop"]
        assert [message["offset"] for message in told("id-8", root)["messages"]] == [8]
        assert list((root / "wal").glob("*.wal")) != []


async def test_a_message_of_a_run_is_told_by_itself_while_its_worker_still_writes(tmp_path: Path) -> None:
    run = RunEvents(EventCode.CLAIMED, "orders", 0, range(20, 40), "bill", 1, [5] * 20, range(100, 120), [*range(20)])
    async with journal(tmp_path / "root", {}, namespace="ackwise") as writing:
        writing.record_run(run)
        writing.record_run(dataclasses.replace(run, code=EventCode.SUCCEEDED))
        await writing.flush()
        (message,) = told("orders/0/33", tmp_path / "root")["messages"]
        assert (message["verdict"], [step["event"] for step in message["steps"]]) == ("EXACTLY_ONCE", ["CLAIMED", "SUCCEEDED"])


async def test_an_assumed_namespace_is_said_and_another_can_be_given(tmp_path: Path) -> None:
    async with journal(tmp_path / "root", {}, namespace="ackwise"):
        assert "which is assumed, since no session names one" in told("order-7", tmp_path / "root")["found"][0]
        said = refusal("order-7", tmp_path / "root", "--namespace", "other")
        assert said == (
            "no event is about a record with the key 'order-7', as handlers would make it (bill in billing; namespace other); "
            "give topic/partition/offset, or --namespace as Dedup has it"
        )


def test_coordinates_that_nobody_knows_are_answered_with_what_is_nearest(root: Path) -> None:
    assert refusal("orders/0/77", root) == (
        "no event is about orders/0/77, and it is no key: the events reach from 2025-12-22 00:00:00 UTC to 2025-12-31 23:59:00 UTC, and "
        "the nearest offsets of orders/0 are 5, of 0 to 5"
    )
    assert refusal("orders/4/1", root).endswith(", and of orders they have partitions 0")
    assert refusal("invoices/0/1", root).endswith(", and they have the topics orders")


def test_what_is_missing_is_said_where_nothing_is_found(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS").skip("w1", 3).say("w1", "1:CS"))
    assert "besides, events are missing: 2 to 4 of worker " in refusal("orders/0/77", root)


def test_the_most_recent_of_many_messages_of_a_key_are_told_in_full(tmp_path: Path) -> None:
    history = History("g")
    for offset in range(12):
        history.say("w1", f"{offset}:{'CS' if offset == 0 else 'D'}", dedup_hash=Identity("ackwise", "g", "bill").of(business_id("k"))[1])
    found = told("k", root_of(tmp_path / "root", history), "--as-of", AS_OF)
    assert [message["offset"] for message in found["messages"]] == list(range(2, 12))
    assert found["found"][-1] == "12 messages were found; the last 10 are shown in full"
    assert [other["offset"] for other in found["messages"][0]["others"]] == [0, 1, *range(3, 12)]


def test_it_runs_without_pyspark_and_says_what_to_install_without_pyarrow(root: Path) -> None:
    program = "import typer; from pathlib import Path; from ackwise.spark.commands.why import why; typer.run(why)"
    for package, words in (("pyspark", "LOST: "), ("pyarrow", "why needs pyarrow, which is not installed: pip install 'ackwise[events]'")):
        command = [sys.executable, "-c", BLOCKED.format(blocked=[package, "py4j"]) + program, "orders/0/3", str(root)]
        plain = {**os.environ, "TYPER_STANDARD_TRACEBACK": "1"}
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
        assert (answer.returncode, words in answer.stdout + answer.stderr) == (1, True), answer.stderr


def test_it_imports_neither_pandas_nor_an_engine(tmp_path: Path) -> None:
    root = root_of(tmp_path, History("g").say("w1", "0:CS 1:CS W=2"))
    program = (
        "import sys; from pathlib import Path; from ackwise.spark.config import ReconcileConfig; from ackwise.spark.why.asking import ask; "
        "ask('orders/0/1', [Path(sys.argv[1])], ReconcileConfig()); "
        "print({*sys.modules} & {'pandas', 'pyspark', 'duckdb', 'pyarrow.dataset'})"
    )
    answer = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False)
    assert answer.stdout == "set()\n", answer.stderr


def test_each_verdict_on_a_message_is_told_with_its_rule_and_each_anomaly_with_what_to_do() -> None:
    for verdict in {verdict for case in CASES.values() for verdict in case.verdicts.values()}:
        assert rule_of(verdict) != MEANINGS[verdict], verdict
        assert bool(advice_on(verdict, Flag(0))) or verdict not in ANOMALIES, verdict


def test_what_flags_ask_for_is_told_beside_the_verdict() -> None:
    assert advice_on(Verdict.EXACTLY_ONCE, Flag.HAD_FAILURES) == []
    assert advice_on(Verdict.IN_FLIGHT, Flag.COMMITTED_PAST)[1].startswith("Kafka will not deliver it again")
    assert len(advice_on(Verdict.MULTI_EXECUTED, Flag.AMBIGUOUS_EXEC)) == 1


@asynccontextmanager
async def journal(root: Path, attrs: dict[str, object], *, namespace: str) -> AsyncIterator[Journal]:
    """A worker that writes to `root`, and has run two messages."""
    identity = Identity(namespace, "billing", "bill")
    writing = Journal(root, cluster="c", group_id="billing", attrs=attrs)
    await writing.open()
    try:
        for offset, dedup_id in ((7, business_id("order-7")), (8, message_id("orders", b"id-8"))):
            hashed = identity.of(dedup_id)[1]
            writing.record(Event(EventCode.CLAIMED, "orders", 0, offset, "bill", 1, offset, hashed))
            writing.record(Event(EventCode.SUCCEEDED, "orders", 0, offset, "bill", 1, offset, hashed))
        await writing.flush()
        yield writing
    finally:
        await writing.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for offset in range(6):
            answer = asked(f"orders/0/{offset}", root_of(Path(folder), night()), "--as-of", AS_OF)
            (GOLDEN / f"why-{offset}.txt").write_text(trimmed(answer.stdout))
