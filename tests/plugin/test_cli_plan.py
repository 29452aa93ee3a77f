"""`ackwise plan` as a user calls it, where no broker is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ackwise.middleware.repair import Action, Step, Title, write_plan
from ackwise.plugin.cli.root import new_app

STEPS = [
    Step(Action.REDELIVER, "LOST", "", "billing", "bill", 0, "orders", "", 0, 3, 7, 1, last_event="FAILED"),
    Step(Action.REDELIVER, "LOST", "", "billing", "bill", 0, "orders", "", 1, 9, 10, 2),
    Step(Action.REVIEW, "MULTI_EXECUTED", "", "mail", "send", 0, "orders", "", 1, 4, 5, 1),
]

APP = """
from ackwise import App

app = App("billing")

@app.agent("orders")
async def bill(value: bytes) -> None: ...
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan, beside an app of one of its groups."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"shop_{tmp_path.name}.py").write_text(APP)
    write_plan(tmp_path / "plan.jsonl", Title("run-1", 1_767_225_600_000_000), STEPS)
    return tmp_path / "plan.jsonl"


def ackwise(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(new_app(), [str(each) for each in arguments], prog_name="ackwise")


def test_show_counts_by_group_action_and_verdict(plan: Path) -> None:
    done = ackwise("plan", "show", plan, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "plan_id": "run-1",
        "as_of": "2026-01-01T00:00:00.000+00:00",
        "actions": [
            {"group": "billing", "action": "REDELIVER", "verdict": "LOST", "risk": "safe", "steps": 2, "offsets": 5},
            {"group": "mail", "action": "REVIEW", "verdict": "MULTI_EXECUTED", "risk": "review", "steps": 1, "offsets": 1},
        ],
    }


def test_show_lists_the_steps(plan: Path) -> None:
    lines = [line.split() for line in ackwise("plan", "show", plan).stdout.splitlines()]
    assert ["REDELIVER", "orders/0/3–6", "bill", "LOST", "1", "FAILED"] in lines
    assert ["REVIEW", "orders/1/4", "send", "MULTI_EXECUTED", "1", "–"] in lines


def test_a_plan_without_steps_says_that_nothing_is_to_be_repaired(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.jsonl", Title("run-1", 0), [])
    assert ackwise("plan", "show", tmp_path / "plan.jsonl").stdout.splitlines()[-1] == "nothing is to be repaired"


@pytest.mark.parametrize("command", [("show",), ("apply", "APP")], ids=["show", "apply"])
def test_a_torn_plan_is_one_sentence(plan: Path, command: tuple[str, ...]) -> None:
    plan.write_text(plan.read_text()[:-30])
    arguments = [each.replace("APP", f"shop_{plan.parent.name}:app") for each in command[1:]]
    done = ackwise("plan", command[0], plan, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error line 4 of {plan} is no step of a plan (")
    assert done.stderr.count("\n") == 1


def test_what_is_no_plan_is_one_sentence(plan: Path) -> None:
    (plan.parent / "notes.txt").write_text("nothing")
    for path, said in (
        ("notes.txt", "is no repair plan"),
        ("absent.jsonl", "can't be read (No such file or directory)"),
        (".", "can't be read"),
    ):
        done = ackwise("plan", "show", path)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr


def test_a_rate_of_nothing_is_refused(plan: Path) -> None:
    done = ackwise("plan", "apply", plan, f"shop_{plan.parent.name}:app", "--rate", "0")
    assert (done.exit_code, done.stderr) == (2, "error --rate is 0; it must be above 0, copies per second\n")


def test_a_broker_that_is_away_is_one_sentence_and_notes_nothing(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKWISE_BROKERS", "localhost:1")
    done = ackwise("plan", "apply", plan, f"shop_{plan.parent.name}:app")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no broker answers (localhost:1: " in done.stderr
    assert not (plan.parent / "plan.progress.jsonl").exists()
