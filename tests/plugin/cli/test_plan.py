"""`ackwise plan` as a user calls it, where no broker is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tables import each
from typer.testing import CliRunner, Result

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.repairplan import Action, RepairStep, Title, read_steps, read_title, write_plan
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.operate.resend import Fate
from ackwise.plugin.operate.resendplan import PlanProgress, progress_path

STEPS = [
    RepairStep(Action.REDELIVER, "LOST", "", "billing", "bill", 0, "orders", "", 0, 3, 7, 1, last_event="FAILED"),
    RepairStep(Action.REDELIVER, "LOST", "", "billing", "bill", 0, "orders", "", 1, 9, 10, 2),
    RepairStep(Action.REVIEW, "MULTI_EXECUTED", "", "mail", "send", 0, "orders", "", 1, 4, 5, 1),
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


PARKED = RepairStep(Action.REQUEUE, "PARKED", "", "", None, None, "orders", "", -1, 7, 9, 0, outbox="postgresql://db/shop")


def test_parked_rows_are_for_people_and_their_command_is_shown(plan: Path) -> None:
    write_plan(plan, Title("run-1", 1_767_225_600_000_000), [PARKED])
    assert [*read_steps(plan)] == [PARKED]
    command = "call this after you have fixed the cause: ackwise outbox requeue postgresql://db/shop 7 8"
    for code, arguments in ((0, ("show", plan)), (1, ("apply", plan, f"shop_{plan.parent.name}:app"))):
        done = ackwise("plan", *arguments)
        assert (done.exit_code, command in done.stdout) == (code, True), done.stderr
    assert "row 7–8 of postgresql://db/shop" in ackwise("plan", "show", plan).stdout


def test_a_plan_without_steps_says_that_nothing_is_to_be_repaired(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.jsonl", Title("run-1", 0), [])
    assert ackwise("plan", "show", tmp_path / "plan.jsonl").stdout.splitlines()[-1] == "nothing to repair"


@pytest.mark.parametrize("command", [("show",), ("apply", "APP")], ids=["show", "apply"])
def test_a_torn_plan_is_one_sentence(plan: Path, command: tuple[str, ...]) -> None:
    plan.write_bytes(plan.read_bytes()[:-30] + b"\xff")
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


def test_a_plan_of_no_time_is_one_sentence(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("1767225600000000", "1767225600000000000"))
    done = ackwise("plan", "show", plan)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "is no repair plan" in done.stderr


@each("rate", ["0", "-1", "nan", "inf"])
def test_a_rate_that_is_no_number_above_nothing_is_refused(plan: Path, rate: str) -> None:
    done = ackwise("plan", "apply", plan, f"shop_{plan.parent.name}:app", f"--rate={rate}")
    assert (done.exit_code, done.stderr) == (2, f"error --rate is {rate}; it must be a number above 0, copies per second\n")


@each(
    "text",
    ["5\n", "nothing\n", "{}\n", '{"plan_id": "run-1"}\n7\n', '{"plan_id": "run-1"}\n{"step": "a", "through": 1, "fates": {"?": 1}}\n'],
)
def test_a_progress_file_that_is_not_ours_is_one_sentence(plan: Path, text: str) -> None:
    progress = progress_path(plan)
    progress.write_text(text)
    done = ackwise("plan", "apply", plan, f"shop_{plan.parent.name}:app")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"of {progress}, which says how far the plan came, is not what Ackwise wrote there" in done.stderr
    assert progress.read_text() == text


def test_a_progress_file_whose_first_line_a_kill_tore_is_begun_anew(plan: Path) -> None:
    title, (step, *_) = read_title(plan), STEPS
    progress_path(plan).write_text('{"schema_ver')
    with PlanProgress(plan, title, writing=True) as progress:
        progress.note([(step, step.end, {Fate.SENT: step.offsets})])
    assert PlanProgress(plan, title, writing=False).through(step) == step.end
    with pytest.raises(ConfigurationError, match="says how far plan 'run-1' came, and this is 'run-2'"):
        PlanProgress(plan, Title("run-2", 0), writing=False)


def test_a_broker_that_is_away_is_one_sentence_and_notes_nothing(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKWISE_BROKERS", "localhost:1")
    done = ackwise("plan", "apply", plan, f"shop_{plan.parent.name}:app")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no broker answers (localhost:1: " in done.stderr
    assert not (plan.parent / "plan.progress.jsonl").exists()
