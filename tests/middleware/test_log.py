"""What is logged, and what never is: nothing of a message, nothing that user code says, no password."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.errors import AckwiseError, PublishUnavailable, StoreUnavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.storage.claimstore import Exchange
from ackwise.middleware.usercode import where_raised

REPOSITORY = Path(__file__).parents[2]

#: Stands in every payload, key, header, exception, reason and password of this file.
SECRET = "hush"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """What was logged at INFO and above while everything was being logged."""
    caplog.set_level(logging.DEBUG, "ackwise")
    return lambda: [record for record in caplog.records if record.levelno >= logging.INFO]


def whole(records: Iterable[logging.LogRecord]) -> str:
    """Everything that a handler could print of the records."""
    return "\n".join(f"{logging.Formatter().format(record)} {json.dumps(vars(record), default=str)}" for record in records)


def events(records: Iterable[logging.LogRecord]) -> set[str]:
    return {vars(record)["event"] for record in records}


def secret_entries(spine: Any, count: int) -> list[Any]:
    fields = {"key": b"hush-key", "headers": (("trace", b"hush-header"),)}
    return [spine.entry(100 + index, value=b"hush-%d" % index, **fields) for index in range(count)]


class Clerk:
    """A handler that fails in a new way each time, and says its payload each time."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, batch: Batch[bytes]) -> Any:
        self.calls += 1
        text = str(batch[0].value)
        match self.calls:
            case 1:
                raise KeyError(text)
            case 2:
                raise Reject(text)
            case 3:
                for message in batch:
                    batch.dead(message, text)
            case 4:
                batch.later("hush")  # type: ignore[arg-type]  # what users do in spite of it
            case 5:
                return text
            case 6:
                raise type("Mute", (Exception,), {"__str__": lambda self: text})()
        return CONSUME_LATER


async def test_no_failure_of_a_handler_tells_the_log_what_it_says(make_spine: Any, told: Any) -> None:
    for calls in range(7):
        clerk = Clerk()
        clerk.calls = calls
        spine = make_spine(clerk, dedup=True)
        await spine.run(secret_entries(spine, 3))
    assert events(told()) == {"messages come back later", "messages are dead letters"}
    assert SECRET not in whole(told())


class SecretivePolicy:
    """A retry policy that repeats a payload when it fails."""

    def delay(self, attempt: int) -> float:
        raise ValueError("hush")


async def test_no_failure_of_another_function_of_the_user_tells_the_log_what_it_says(make_spine: Any, told: Any, succeed: Any) -> None:
    def decode(value: bytes | None) -> object:
        raise ValueError(value)

    def key(message: Any) -> str:
        raise KeyError(message.value)

    for options in ({"decode": decode}, {"dedup": {"key": key}, "later": ConsumeLater(retry=SecretivePolicy())}):
        spine = make_spine(succeed, **options)
        await spine.run(secret_entries(spine, 3))
    assert events(told()) == {
        "messages are dead letters",
        "key function of Dedup raised",
        "retry policy raised",
    }
    assert SECRET not in whole(told())


async def test_no_failure_of_a_store_tells_the_log_its_password(make_spine: Any, make_store: Any, make_clock: Any, told: Any) -> None:
    class Away:
        async def open(self) -> None: ...
        async def close(self) -> None: ...
        async def exchange(self, exchange: Exchange) -> Any:
            raise StoreUnavailable("no answer from postgresql://clerk:hush@db:5432/claims (host=db password=hush); look at it")

    spine = make_spine(Clerk(), dedup=True, store=Away())
    await spine.run(secret_entries(spine, 3))
    (record,) = told()
    assert vars(record)["fields"]["error"] == (
        "StoreUnavailable: no answer from postgresql://***@db:5432/claims (host=db password=*** look at it"
    )
    assert SECRET not in whole([record])


async def test_a_step_that_fails_says_so_once_for_the_whole_batch(make_spine: Any, told: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler)
    spine.publisher.answer = lambda copy: PublishUnavailable("the broker is unavailable")
    await spine.run(spine.entries(50))
    held = [vars(record)["fields"] for record in told() if vars(record)["event"].startswith("messages held")]
    assert held == [
        {
            "topic": "orders",
            "partition": 3,
            "messages": 50,
            "why": "copies are not acknowledged",
            "error": "PublishUnavailable: the broker is unavailable",
            "retry_in": 5.0,
        }
    ]


async def test_dead_letters_of_one_reason_are_one_line(make_spine: Any, told: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for message in batch[:20]:
            batch.dead(message)
        for message in batch[20:]:
            batch.dead(message, "no price")

    spine = make_spine(handler)
    await spine.run(spine.entries(50))
    lines = [vars(record)["fields"] for record in told()]
    assert [(line["reason"], line["messages"], line["offset"]) for line in lines] == [
        ("rejected", 20, 100),
        ("given by the handler", 30, 120),
    ]


async def test_a_failure_is_told_with_its_class_and_the_line_of_user_code(make_spine: Any, told: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        json.loads("no json")

    spine = make_spine(handler)
    await spine.run(spine.entries(3))
    (record,) = told()
    line = handler.__code__.co_firstlineno + 1
    assert record.message == (
        f"messages come back later: handler=bill messages=3 batch=3 topic=orders partition=3 offset=100 attempt=1 delay=10 "
        f"error=JSONDecodeError at={__file__}:{line}"
    )


async def test_the_traceback_is_there_for_who_debugs(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ackwise")
    spine = make_spine(Clerk())
    await spine.run(spine.entries(1))
    (record,) = [record for record in caplog.records if record.exc_info]
    assert (record.levelno, vars(record)["event"]) == (logging.DEBUG, "what the handler raised")
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


# one line


def line_of(caplog: pytest.LogCaptureFixture, **fields: Any) -> str:
    caplog.clear()
    Log("ackwise.test").warning("something happened", **fields)
    return caplog.messages[0]


def test_a_record_has_its_event_and_its_fields_for_machines(caplog: pytest.LogCaptureFixture) -> None:
    Log("ackwise.test").warning("something happened", topic="orders", partition=3, error=None)
    (record,) = caplog.records
    assert (vars(record)["event"], vars(record)["fields"]) == ("something happened", {"topic": "orders", "partition": 3})
    assert (record.name, record.funcName) == ("ackwise.test", "test_a_record_has_its_event_and_its_fields_for_machines")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("orders", "orders"),
        ("orders, parcels", '"orders, parcels"'),
        ("a=b", '"a=b"'),
        ("two\nlines", r'"two\nlines"'),
        ("", '""'),
        (0.1 + 0.2, "0.3"),
        (10.0, "10"),
        (7, "7"),
    ],
)
def test_a_field_is_printed_so_that_no_other_can_be_read_into_it(caplog: pytest.LogCaptureFixture, value: Any, printed: str) -> None:
    assert line_of(caplog, topic=value) == f"something happened: topic={printed}"


@each(
    ("error", "text"),
    [
        (TimeoutError(), "TimeoutError"),
        (OSError("no route"), "OSError: no route"),
        (type("KafkaError", (Exception,), {"__str__": lambda self: "KafkaError: away"})(), "KafkaError: away"),
    ],
)
def test_an_error_is_named_by_its_class_also_when_it_says_nothing(error: Exception, text: str) -> None:
    assert said(error) == text


def test_what_nobody_listens_to_costs_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "ackwise.test")
    Log("ackwise.test").warning("something happened", topic="orders")
    assert caplog.records == []


# where


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises((ValueError, AckwiseError)) as raised:
        call()
    return raised.value


def test_an_error_in_a_library_is_put_where_user_code_called_it() -> None:
    def call() -> object:
        return json.loads("no json")

    assert where_raised(caught(call)) == f"{__file__}:{call.__code__.co_firstlineno + 1}"


def test_an_error_without_user_code_is_put_where_it_was_raised() -> None:
    error = caught(lambda: Batch([]).later("x"))  # type: ignore[arg-type]  # on purpose
    traceback = error.__traceback__
    assert traceback is not None
    error.__traceback__ = traceback.tb_next and traceback.tb_next.tb_next
    where = where_raised(error)
    assert where is not None
    assert "/middleware/message/batch.py:" in where


def test_an_app_that_is_installed_is_user_code_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.middleware.usercode._INSTALLED", ("/",))

    def call() -> object:
        return json.loads("no json")

    assert where_raised(caught(call)) == f"{__file__}:{call.__code__.co_firstlineno + 1}"


def test_an_error_that_was_never_raised_is_nowhere() -> None:
    assert where_raised(ValueError()) is None


# docs/logging.md


def modules() -> list[Path]:
    return [path for folder in ("middleware", "plugin", "stores", "spark") for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def logged() -> set[tuple[str, str, str, frozenset[str]]]:
    """Each call of a `Log` in the code: level, logger, event, names of fields."""
    found: set[tuple[str, str, str, frozenset[str]]] = set()
    for path in modules():
        source = path.read_text("utf-8")
        name = "ackwise.events" if 'Log("ackwise.events")' in source else "ackwise"
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "logger"), attr="debug" | "info" | "warning" | "error" as level),
                    args=[ast.Constant(value=str(event))],
                    keywords=keywords,
                ):
                    fields = frozenset(str(keyword.arg) for keyword in keywords) - {"raised"}
                    found.add((level, name, event, fields))
    return found


def documented() -> list[tuple[str, str, str, frozenset[str]]]:
    rows = []
    for line in (REPOSITORY / "docs" / "logging.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "level":
            level, name, event, fields, _ = cells
            rows.append((level, name.strip("`"), event, frozenset(field.strip("` ") for field in fields.split(",") if field != "–")))
    return rows


@pytest.mark.slow  # parses every module of the library
def test_the_table_has_exactly_what_is_logged() -> None:
    rows = documented()
    assert len(rows) == len(set(rows)) > 30
    assert set(rows) == logged()


def test_nothing_is_logged_past_the_table() -> None:
    """Every module logs through `Log`, with a fixed event and fields by name."""
    past = re.compile(r"= logging\.getLogger|getLogger\([^)]*\)\.(?:debug|info|warning|error|exception|critical|log)\b")
    assert [path for path in modules() if past.search(path.read_text("utf-8"))] == [REPOSITORY / "middleware" / "log.py"]
