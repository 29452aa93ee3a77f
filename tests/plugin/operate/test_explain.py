"""What `ackwise explain` prints of three apps is held to files; `python -m tests.plugin.operate.test_explain` writes them again."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.tables import each

from ackwise import App, Batch, ConsumeLater, DeadLetter, Dedup, Events, Exponential, Fixed, Message, Outbox, Transactional
from ackwise.errors import ConfigurationError
from ackwise.middleware.events import Event
from ackwise.plugin.cli.explain import print_explanation
from ackwise.plugin.settings.config import Config, Given, read_config
from ackwise.plugin.settings.connecting import shown_url

GOLDEN = Path(__file__).with_name("golden")


class BadOrderError(ValueError):
    def __init__(self, order: str, why: str) -> None: ...


def order_id(message: Message[Any]) -> str:
    return "1"


async def timing(batch: Batch[Any], call_next: Any) -> object:
    return await call_next(batch)


async def auth(batch: Batch[Any], call_next: Any) -> object:
    return await call_next(batch)


def count(event: Event) -> None: ...


async def bill(batch: Batch[bytes]) -> None: ...


async def ship(message: Message[bytes]) -> None: ...


def plain() -> App:
    app = App("billing", config=Config())
    app.agent("orders")(ship)
    return app


def everything() -> App:
    file: dict[tuple[str, ...], Given] = {
        ("commit_interval",): Given(1.0, "ackwise.toml"),
        ("dedup", "lease"): Given(60.0, "ackwise.toml"),
        ("agents", "bill", "max_batch"): Given(50, "ackwise.toml"),
        ("client_options", "sasl_plain_password"): Given("hush", "ackwise.toml"),
    }
    variables: dict[tuple[str, ...], Given] = {
        ("brokers",): Given("kafka-1:9092", "ACKWISE_BROKERS"),
        ("dedup", "retention"): Given(172800.0, "ACKWISE_DEDUP__RETENTION"),
        ("agents", "BILL", "max_wait"): Given(0.5, "ACKWISE_AGENTS__BILL__MAX_WAIT"),
    }
    app = App("billing", config=Config(file, variables), drain_timeout="10s", client_options={"security_protocol": "SASL_SSL"})
    app.use(
        timing,
        auth,
        count,
        Dedup("sqlite:///claims.db", key=order_id),
        ConsumeLater(5, retry=Exponential(jitter=0.2), retry_by_error={TimeoutError: Fixed("2s")}, no_retry=BadOrderError),
        DeadLetter("graves"),
        Events("events"),
    )
    app.agent("orders", "refunds", keep_ack_index_on_error=True)(bill)
    app.agent("parcels", max_age="1d", expires=True)(ship)
    return app


def refused() -> App:
    variables: dict[tuple[str, ...], Given] = {
        ("dedup", "store"): Given("memory://", "ACKWISE_DEDUP__STORE"),
        ("dedup", "retention"): Given(60.0, "ACKWISE_DEDUP__RETENTION"),
        ("consume_later", "max_reconsume_times"): Given(1, "ACKWISE_CONSUME_LATER__MAX_RECONSUME_TIMES"),
    }
    app = App("billing", config=Config({}, variables), commit_interval=0)
    app.use(ConsumeLater(levels="1s 5m"), Events("events", mode="async"))
    app.agent("orders")(ship)
    return app


def transactional() -> App:
    app = App("billing", config=Config())
    app.use(Transactional("sqlite:///shop.db", key=order_id))
    app.agent("orders")(bill)
    return app


APPS: dict[str, Callable[[], App]] = {"plain": plain, "everything": everything, "refused": refused, "transactional": transactional}


def printed(app: App, width: int = 1000) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_explanation(app.explain(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the file is the one above
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@each("name", APPS)
def test_the_explanation_fits_a_terminal_and_no_word_of_it_is_cut(name: str) -> None:
    narrow, wide = printed(APPS[name](), width=80), printed(APPS[name]())
    assert max(len(line) for line in narrow.partition("What happens when")[2].partition("\n\n")[0].splitlines()) <= 80
    assert narrow.partition("What happens when")[2].split() == wide.partition("What happens when")[2].split()


@each("name", APPS)
def test_the_explanation_is_the_one_on_file(name: str) -> None:
    assert printed(APPS[name]()) == (GOLDEN / f"explain-{name}.txt").read_text("utf-8")


def test_a_wish_that_two_policies_can_not_both_fulfil_is_refused() -> None:
    app = transactional()
    app.use(Dedup("sqlite:///claims.db"))
    with pytest.raises(ConfigurationError, match="Dedup and Transactional are both on, and both store the keys; use one of them"):
        app.explain()


def test_a_prefix_that_survives_an_error_and_a_transaction_that_does_not_are_refused() -> None:
    app = transactional()
    app.agent("refunds", name="refund", keep_ack_index_on_error=True)(bill)
    (sentence,) = app.explain().refusals
    assert sentence.startswith("agent 'refund' has keep_ack_index_on_error, and Transactional rolls back")


@each(("store", "sentence"), [("claims.db", "has no scheme"), ("sqlit:///claims.db", "did you mean sqlite://")])
def test_a_store_that_there_is_not_is_said(store: str, sentence: str) -> None:
    app = plain()
    app.use(Dedup(store))
    assert sentence in app.explain().refusals[0]


def test_no_secret_is_shown() -> None:
    app = App("billing", config=Config(), client_options={"sasl_plain_username": "hush", "sasl_plain_password": "hush"})
    app.use(Dedup("postgres://hush:hu/sh@db/claims?password=hush"), Events("s3://hush:hush@bucket/events"))
    app.agent("orders")(ship)
    assert "hush" not in printed(app)
    assert "hu/sh" not in printed(app)


@each(
    ("url", "shown"),
    [
        ("sqlite:///claims.db", "sqlite:///claims.db"),
        ("events", "events"),
        ("redis://:p@ss@host:1/0", "redis://***@host:1/0"),
        ("postgres://me@host/db?sslpassword=x&a=b", "postgres://***@host/db?***"),
        ("postgres://me:a?b@host/db", "postgres://***@host/db"),
    ],
)
def test_of_a_url_neither_user_nor_password_nor_query_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_an_app_without_agents_can_not_be_explained() -> None:
    with pytest.raises(ConfigurationError, match="has no agents"):
        App("billing", config=Config()).explain()


@each(
    ("options", "said"),
    [
        ("", "sent rows are deleted, parked rows stay until they are requeued"),
        ("?keep_sent=60&blank=key", "sent rows stay for 60 s without key, parked rows stay until they are requeued"),
    ],
)
def test_it_says_what_stays_of_rows_of_the_outbox(options: str, said: str) -> None:
    app = App("billing", config=Config())
    app.use(Outbox(f"sqlite:///shop.db{options}"))
    app.agent("orders")(ship)
    assert f"every worker sends its rows; {said}" in str(app.explain().chain)


def test_explaining_starts_nothing(tmp_path: Path) -> None:
    app = App("billing", config=read_config(tmp_path, {}))
    app.use(Dedup(f"sqlite:///{tmp_path}/claims.db"), Events(str(tmp_path / "events")))
    app.agent("orders")(ship)
    app.explain()
    app.agent("parcels")(bill)  # an app that was started takes no more agents
    assert list(tmp_path.iterdir()) == []


APP = """
from ackwise import App

app = App("billing", brokers="127.0.0.1:1")

@app.agent("orders")
async def bill(value: bytes) -> None: ...
"""


def run_explain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "worker.py").write_text(APP)
    command = [sys.executable, "-m", "ackwise.plugin.cli", "explain", "worker:app", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow  # starts the command in a process
def test_the_command_needs_no_broker_and_prints_json_if_asked(tmp_path: Path) -> None:
    (tmp_path / "ackwise.toml").write_text("commit_interval = '250ms'\n")
    done = run_explain(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    explained = json.loads(done.stdout)
    assert {"name": "commit_interval", "value": "250ms", "source": "ackwise.toml"} in explained["settings"]
    raised = next(failure for failure in explained["failures"] if failure["when"] == "the handler raises")
    assert (raised["delays"][:3], raised["attempts"], raised["ends"]) == ([10, 30, 60], 17, "billing.dlq, max-reconsume-times")


@pytest.mark.slow  # starts the command in a process
def test_the_command_says_by_its_exit_code_that_the_app_would_not_start(tmp_path: Path) -> None:
    (tmp_path / "ackwise.toml").write_text('[dedup]\nstore = "sqlite:///claims.db"\nretention = "1h"\n')
    done = run_explain(tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "refused at start: retention of Dedup is 1h" in done.stdout


@pytest.mark.slow  # starts the command in a process
def test_an_entry_that_there_is_not_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ackwise.toml").write_text("commit_intervall = 1\n")
    done = run_explain(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ackwise.toml sets commit_intervall, and there is no such entry; did you mean commit_interval?" in done.stderr
    assert "Traceback" not in done.stderr


if __name__ == "__main__":
    for name, app in APPS.items():
        (GOLDEN / f"explain-{name}.txt").write_text(printed(app()), "utf-8")
