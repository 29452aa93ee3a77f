"""`ackwise dlq export`, `import` and `drop`, over a Kafka in memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.operate.deadletters.letters import Shop, letter

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.plugin.operate.deadletter import read_letter
from ackwise.plugin.operate.deadletterfile import LetterFile, check_letters, letters_of


async def test_letters_go_to_a_file_and_come_back_from_it_as_with_redrive(shop: Shop) -> None:
    odd = letter(2, key=b"\xff", value=None, headers=(("é", None), ("b", b"\x00\xff")))
    shop.bury(letter(1), odd, letter(3, handler="gone"), letter(4, shrunk=1))
    given = ("billing", "letters.jsonl", "--brokers", shop.kafka.bootstrap)
    assert await shop.ackwise("export", *given, "--json") == {"letters": 4}
    file = shop.folder / "letters.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[1], "", lines[2], lines[3]]) + "\n")  # somebody has chosen
    looked = await shop.run("import", shop.app, "letters.jsonl", code=1)
    assert "nothing was changed; add --yes to do it" in looked
    done = await shop.run("import", shop.app, "letters.jsonl", "--yes", "--json", code=1)
    assert done["left"] == {
        "its handler is no longer in the app": ["0/2"], "it was shortened, and its origin is no longer there": ["0/3"]
    }  # fmt: skip
    (copy,) = shop.copies()
    assert (copy.key, copy.value, copy.headers) == (b"\xff", None, (("é", None), ("b", b"\x00\xff")))
    assert (str(copy.origin), copy.replay_id) == ("orders/0/2", b"redrive-1")
    assert shop.states() == {"0/1": ("redriven", 1)}
    again = await shop.run("import", shop.app, "letters.jsonl", "--yes", "--json", code=1)
    assert [each["fate"] for each in again["letters"]] == [*done["left"]]  # what was sent is passed over
    listed = await shop.ackwise("list", shop.app, "--json", code=1)
    assert (listed["open"], sum(each["redriven"] for each in listed["causes"])) == (3, 1)


async def test_a_file_that_is_there_is_not_overwritten_and_a_failure_leaves_none(shop: Shop, tmp_path: Path) -> None:
    shop.bury(letter(1))
    (tmp_path / "old.jsonl").write_text("mine")
    assert "old.jsonl is there already; name a new file" in await shop.ackwise("export", shop.app, "old.jsonl", code=2)
    assert (tmp_path / "old.jsonl").read_text() == "mine"
    assert "can't be written (No such file or directory)" in await shop.ackwise("export", shop.app, "no/new.jsonl", code=2)
    with pytest.raises(KeyboardInterrupt), LetterFile(tmp_path / "new.jsonl"):
        raise KeyboardInterrupt
    with pytest.raises(ConfigurationError, match="is there already"), LetterFile(tmp_path / "new.jsonl"):
        (tmp_path / "new.jsonl").write_text("of somebody else")
    assert (tmp_path / "new.jsonl").read_text() == "of somebody else"
    assert not any(name.endswith(".part") for name in os.listdir(tmp_path))  # a folder of a test


async def test_what_a_file_says_is_the_record_as_it_lay_in_its_topic(tmp_path: Path) -> None:
    origin = Origin("billing.dlq", 3, 17, -1)
    copy = letter(1, headers=(("\udcff\n", b"v"), ("ackwise-group", b"mail")))
    record = Delivery(*origin, copy.key, copy.value, copy.headers, origin)
    with LetterFile(tmp_path / "letters.jsonl") as file:
        file.write(read_letter(record, "billing"))
        file.write(read_letter(record._replace(headers=(("\ud800", None),), key=None), "billing"))
    assert (file.number, check_letters(tmp_path / "letters.jsonl", "billing")) == (2, 2)
    first, second = [each async for each in letters_of(tmp_path / "letters.jsonl", "billing")]
    assert first == read_letter(record, "billing")
    assert (second.record.headers, second.problem) == ((("\ud800", None),), "it has no ackwise-version header")


GOOD: dict[str, Any] = {
    "version": 1, "topic": "billing.dlq", "partition": 0, "offset": 1, "timestamp_ms": 5, "key": None, "value": "", "headers": []
}  # fmt: skip


def test_a_line_that_is_no_letter_is_named(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    wrong = (
        {"version": 2}, {"topic": 7}, {"partition": "0"}, {"offset": 2**63}, {"timestamp_ms": True}, {"key": "é"}, {"key": 7},
        {"value": "a"}, {"headers": None}, {"headers": [["a"]]}, {"headers": [[1, "YQ=="]]}, {"headers": [["a", "?"]]}
    )  # fmt: skip
    for line in (b"\xff", b"[]", b"[" * 100_000, *(json.dumps(GOOD | each).encode() for each in wrong)):
        path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
        with pytest.raises(ConfigurationError) as refused:
            check_letters(path, "billing")
        assert "line 2 of" in str(refused.value), line[:80]
        assert "is no letter as ackwise dlq export writes it" in str(refused.value), line[:80]


async def test_import_looks_at_the_whole_file_first(shop: Shop) -> None:
    (shop.folder / "letters.jsonl").write_text("{}\n")
    assert "line 1 of letters.jsonl is no letter" in await shop.run("import", shop.app, "letters.jsonl", "--yes", code=2)
    assert "none.jsonl can't be read (No such file or directory)" in await shop.run("import", shop.app, "none.jsonl", code=2)
    assert "billing.dlq.state" not in shop.kafka._cluster.topics


async def test_dropping_marks_letters_and_deletes_nothing(shop: Shop) -> None:
    shop.bury(letter(1), letter(2, reason="rejected"), letter(3))
    shop.kafka.produce("billing.dlq", b"not ours")
    given = ("billing", "--brokers", shop.kafka.bootstrap)
    rejected = (await shop.ackwise("list", *given, "0/1", "--json", code=1))["causes"][0]["cause"]
    assert "1 dead letters would be dropped; nothing was changed" in await shop.run("drop", *given, "--cause", rejected)
    assert "billing.dlq.state" not in shop.kafka._cluster.topics
    assert await shop.run("drop", *given, "0/1", "0/3", "--yes", "--json") == {"executed": True, "stopped": False, "letters": 2}
    assert shop.states() == {"0/1": ("dropped", 0), "0/3": ("dropped", 0)}
    assert len(shop.kafka.records("billing.dlq")) == 4
    done = await shop.run("redrive", shop.app, "--yes", "--json")
    assert done["letters"] == [{"handler": "bill", "fate": "sent", "letters": 2}]
    assert "0 dead letters dropped" in await shop.run("drop", *given, "--yes")
    await shop.run("drop", *given, "0/0", "--again", "--yes")
    assert shop.states()["0/0"] == ("dropped", 1)
    await shop.run("redrive", shop.app, "0/0", "0/1", "--again", "--yes")
    assert [(str(copy.origin), copy.replay_id) for copy in shop.copies()][2:] == [
        ("orders/0/1", b"redrive-2"),
        ("orders/0/2", b"redrive-1"),
    ]
