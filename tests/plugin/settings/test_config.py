from __future__ import annotations

import dataclasses
import os
import ssl
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.tables import each

from ackwise import App, ConsumeLater, DeadLetter, Dedup, Events, Fixed
from ackwise.errors import ConfigurationError
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.settings.config import Config, read_config
from ackwise.plugin.settings.entries import ENTRIES, table, variable_of
from ackwise.plugin.settings.hostsettings import HostSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def own(folder: Path, text: str, **variables: str) -> Config:
    (folder / "ackwise.toml").write_text(textwrap.dedent(text))
    return read_config(folder, variables)


def environment(folder: Path, **variables: str) -> Config:
    return read_config(folder, variables)


def refusal(make: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        make()
    return str(refused.value)


async def bill(value: bytes) -> None: ...


def agent(name: str = "bill") -> Agent:
    return Agent(name, ("orders",), "message", bill, bytes)  # type: ignore[arg-type]  # never called


def test_nothing_set_changes_nothing(folder: Path) -> None:
    config, later, dedup = environment(folder), ConsumeLater(3), Dedup("memory://")
    assert config.host_settings("billing", brokers="a:1", commit_interval=1) == HostSettings("a:1", "billing", commit_interval=1)
    assert (config.later(later), config.dedup(dedup), config.dedup(None), config.events(None)) == (later, dedup, None, None)
    assert config.agents([agent()]) == [agent()]


def test_the_environment_wins_over_the_file_and_the_file_over_the_code(folder: Path) -> None:
    config = own(folder, 'commit_interval = "2s"\ndrain_timeout = 7', ACKWISE_COMMIT_INTERVAL="500ms", HOME="/root")
    settings = config.host_settings("billing", brokers="a:1", commit_interval=1, drain_timeout=1, revoke_timeout=3)
    assert (settings.commit_interval, settings.drain_timeout, settings.revoke_timeout) == (0.5, 7.0, 3.0)
    assert config.of() == {"commit_interval": (0.5, "ACKWISE_COMMIT_INTERVAL"), "drain_timeout": (7.0, "ackwise.toml")}


def test_a_project_may_hold_the_entries_instead(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.ackwise.dedup]\nstore = "memory://"\n')
    assert environment(folder).of("dedup") == {"store": ("memory://", "pyproject.toml")}


def test_both_files_at_once_are_refused(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.ruff]\n")
    assert own(folder, "commit_interval = 1").of() == {"commit_interval": (1.0, "ackwise.toml")}
    (folder / "pyproject.toml").write_text("[tool.ackwise]\n")
    assert "has both ackwise.toml and [tool.ackwise] in pyproject.toml; keep one of them" in refusal(lambda: own(folder, ""))


def test_policies_that_the_code_uses_change_in_the_named_fields_only(folder: Path) -> None:
    def key(message: object) -> str:
        return "k"

    config = own(
        folder,
        """
        [consume_later]
        max_reconsume_times = 2
        [dedup]
        lease = "1m"
        [events]
        mode = "async"
        [dead_letter]
        topic = "graves"
        """,
        ACKWISE_CONSUME_LATER__LEVELS="2s 4s",
        ACKWISE_DEDUP__STORE="sqlite:///other.db",
    )
    slots = Slots(config)
    for policy in (ConsumeLater(9, retry=Fixed(1), no_retry=KeyError), Dedup("memory://", key=key, epoch=3), Events("out")):
        slots.use(policy)
    assert (slots.later.max_reconsume_times, slots.later.levels.seconds) == (2, (2.0, 4.0))
    assert (slots.later.retry, slots.later.no_retry) == (Fixed(1), (KeyError,))
    assert slots.dedup == Dedup("sqlite:///other.db", key=key, lease=60, epoch=3)
    assert (slots.events, slots.dead_letter) == (Events("out", mode="async"), DeadLetter("graves"))


def test_what_a_file_sets_of_delays_is_held_against_what_the_code_says_of_them(folder: Path) -> None:
    slots = Slots(environment(folder, ACKWISE_CONSUME_LATER__LEVELS="1s 4d"))
    slots.use(ConsumeLater(max_delay="5d"))
    assert (slots.later.max_delay, slots.later.levels.seconds) == (5 * 86400.0, (1.0, 4 * 86400.0))
    short = environment(folder, ACKWISE_CONSUME_LATER__MAX_DELAY="1h")
    assert "the longest delay level is 2h, and max_delay of ConsumeLater is 1h" in refusal(lambda: short.later(None))


def test_a_store_and_a_sink_turn_on_what_the_code_does_not_use(folder: Path) -> None:
    slots = Slots(environment(folder, ACKWISE_DEDUP__STORE="memory://", ACKWISE_DEDUP__EPOCH="4", ACKWISE_EVENTS__SINK="out"))
    assert (slots.dedup, slots.events) == (Dedup("memory://", epoch=4), Events("out"))


def test_a_setting_of_a_policy_that_is_off_is_refused(folder: Path) -> None:
    config = environment(folder, ACKWISE_DEDUP__LEASE="1m")
    assert refusal(lambda: config.dedup(None)) == (
        "dedup.lease is set by ACKWISE_DEDUP__LEASE, and this app does not use Dedup; use(Dedup(…)) in the code, or set dedup.store as well"
    )


def test_options_of_the_clients_are_added_to_those_of_the_code(folder: Path) -> None:
    config = own(
        folder,
        '[client_options]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"',
        ACKWISE_CLIENT_OPTIONS__SASL_MECHANISM="SCRAM-SHA-256",
    )
    settings = config.host_settings("billing", brokers="a:1", client_options={"ssl_context": None, "sasl_mechanism": "GSSAPI"})
    assert {**settings.client_options, "ssl_context": None} == {
        "ssl_context": None,
        "sasl_mechanism": "SCRAM-SHA-256",
        "security_protocol": "SASL_SSL",
    }
    assert isinstance(settings.client_options["ssl_context"], ssl.SSLContext)  # of what the system trusts


def test_tuning_in_a_file_or_the_environment_is_added_to_that_of_the_code(folder: Path) -> None:
    config = own(folder, "[consumer_options]\nfetch_max_bytes = 2000000", ACKWISE_PRODUCER_OPTIONS__LINGER_MS="5")
    settings = config.host_settings("billing", consumer_options={"fetch_max_bytes": 1_000_000, "client_rack": "a"})
    assert settings.consumer_options == {"fetch_max_bytes": 2_000_000, "client_rack": "a"}
    assert settings.producer_options == {"linger_ms": 5}


def test_tuning_that_cannot_work_is_refused_with_its_source(folder: Path) -> None:
    config = own(folder, "[consumer_options]\nenable_auto_commit = 1")
    assert refusal(lambda: config.host_settings("billing")).endswith("(consumer_options.enable_auto_commit is set by ackwise.toml)")
    (folder / "ackwise.toml").unlink()
    config = environment(folder, ACKWISE_PRODUCER_OPTIONS__LINGER_MS="soon")
    assert refusal(lambda: config.host_settings("billing")) == (
        "producer_options has linger_ms='soon'; it is a whole number from 0 to 1000 "
        "(producer_options.linger_ms is set by ACKWISE_PRODUCER_OPTIONS__LINGER_MS)"
    )


def test_an_option_that_the_clients_do_not_take_is_refused_with_its_source_and_without_its_value(folder: Path) -> None:
    in_file = own(folder, '[client_options]\nsasl_plain_pasword = "s3cret"')
    said = refusal(lambda: in_file.host_settings("billing"))
    assert said == (
        "client_options has 'sasl_plain_pasword', which is no option of every Kafka client of a worker; "
        "did you mean 'sasl_plain_password'? "
        "(client_options.sasl_plain_pasword is set by ackwise.toml)"
    )
    (folder / "ackwise.toml").unlink()
    in_variable = environment(folder, ACKWISE_CLIENT_OPTIONS__ACKS="1")
    assert refusal(lambda: in_variable.host_settings("billing")).endswith("(client_options.acks is set by ACKWISE_CLIENT_OPTIONS__ACKS)")


def test_the_token_of_the_pages_is_no_setting_and_hinders_no_worker(folder: Path) -> None:
    assert environment(folder, ACKWISE_UI_TOKEN="secret").of() == {}


@each(
    "variable",
    ["ACKWISE_SERVICE_HOST", "ACKWISE_SERVICE_PORT", "ACKWISE_SERVICE_PORT_HTTP_METRICS", "ACKWISE_PORT", "ACKWISE_PORT_9092_TCP",
     "ACKWISE_PORT_9092_TCP_ADDR", "ACKWISE_PORT_53_UDP_PROTO", "ACKWISE_BILLING_SERVICE_HOST", "ACKWISE_BILLING_PORT_80_TCP_PORT"],
)  # fmt: skip
def test_a_variable_that_kubernetes_sets_for_a_service_is_refused_and_says_so(folder: Path, variable: str) -> None:
    assert refusal(lambda: environment(folder, **{variable: "10.0.0.1"})) == (
        f"{variable} is set, and there is no such entry; Kubernetes sets such variables for a Service whose name starts with 'ackwise': "
        "rename the Service, or set enableServiceLinks: false in the pod"
    )


@each("variable", ["ACKWISE_BROKER", "ACKWISE_PORTS", "ACKWISE_SERVICE", "ACKWISE_PORT_TCP", "ACKWISE_DEDUP__PORT"])
def test_a_variable_that_is_merely_wrong_is_not_blamed_on_kubernetes(folder: Path, variable: str) -> None:
    assert "Kubernetes" not in refusal(lambda: environment(folder, **{variable: "10.0.0.1"}))


def test_a_fixed_setting_is_not_changed_by_any_entry(folder: Path) -> None:
    config = environment(folder, ACKWISE_BROKERS="b:2", ACKWISE_CLIENT_OPTIONS__SASL_MECHANISM="PLAIN", ACKWISE_START="latest")
    settings = config.host_settings("billing", fixed={"brokers": "a:1", "client_options": {"ssl_context": None}})
    assert (settings.brokers, settings.client_options, settings.start) == ("a:1", {"ssl_context": None}, "latest")
    assert "ACKWISE_BROKERS" not in refusal(lambda: config.host_settings("billing", fixed={"brokers": ""}))


def test_an_agent_is_named_as_it_is_in_a_file_and_in_capitals_by_a_variable(folder: Path) -> None:
    config = own(
        folder,
        '[agents."ship-it"]\nmax_batch = 3\nmax_wait = "1s"\n[agents.bill]\nkeep_ack_index_on_error = true',
        ACKWISE_AGENTS__SHIP_IT__MAX_BATCH="5",
        ACKWISE_AGENTS__BILL__KEEP_ACK_INDEX_ON_ERROR="False",
        ACKWISE_AGENTS__A__B__MAX_BATCH="6",
    )
    ship, billing, odd = config.agents([agent("ship-it"), agent("bill"), agent("a__b")])
    assert (ship.max_batch, ship.max_wait, billing.keep_ack_index_on_error, odd.max_batch) == (5, 1.0, False, 6)
    assert config.of_agent("ship-it") == {"max_batch": (5, "ACKWISE_AGENTS__SHIP_IT__MAX_BATCH"), "max_wait": (1.0, "ackwise.toml")}


def test_a_variable_that_may_mean_two_agents_is_refused(folder: Path) -> None:
    config = environment(folder, ACKWISE_AGENTS__BILL__MAX_BATCH="5")
    assert "ACKWISE_AGENTS__BILL__MAX_BATCH may mean the agents 'bill' and 'Bill'" in refusal(
        lambda: config.agents([agent("bill"), agent("Bill")])
    )


@each(
    ("text", "sentence"),
    [
        ("comit_interval = 1", "ackwise.toml sets comit_interval, and there is no such entry; did you mean commit_interval?"),
        ("[dedup]\nleese = 1", "ackwise.toml sets dedup.leese, and there is no such entry; did you mean dedup.lease?"),
        ("[agents.bill]\nmax_batches = 1", "sets agents.bill.max_batches, and there is no such entry; did you mean agents.bill.max_batch?"),
        ("[agents]\nbill = 1", "ackwise.toml sets agents.bill, and there is no such entry"),
        ("group = 'x'", "ackwise.toml sets group, and there is no such entry; the entries are brokers, create_topics"),
        ("[colours]\n", "ackwise.toml sets colours, and there is no such entry"),
        ("[commit_interval]\n", "commit_interval, set by ackwise.toml, is {}"),
        ("dedup = 'memory://'", "ackwise.toml sets dedup, and there is no such entry"),
        ("commit_interval = 'soon'", "commit_interval, set by ackwise.toml, is 'soon', which is not a duration; write it as 30"),
        ("commit_interval = true", "commit_interval, set by ackwise.toml, is True"),
        ("create_topics = 'yes'", "create_topics, set by ackwise.toml, is 'yes'; it is one of 'auto', 'never', 'broker'"),
        (
            "[consume_later]\nmax_reconsume_times = '3'",
            "consume_later.max_reconsume_times, set by ackwise.toml, is '3'; it must be a whole",
        ),
        ("[consume_later]\nlevels = '9s 1s'", "consume_later.levels, set by ackwise.toml, can't be used: delay levels '9s 1s'"),
        ("[consume_later]\nlevels = 9", "consume_later.levels, set by ackwise.toml, is a number or a time; write the delays as"),
        ("[dedup]\nstore = 7", "dedup.store, set by ackwise.toml, is a number or a time; it must be a text in quotes"),
        ("[dedup]\nstore = ''", "dedup.store, set by ackwise.toml, is empty"),
        (
            "[agents.bill]\nkeep_ack_index_on_error = 1",
            "agents.bill.keep_ack_index_on_error, set by ackwise.toml, is 1; it must be true or",
        ),
        ("commit_interval = ", "ackwise.toml is not valid TOML: Invalid value"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_entry_source_and_advice(folder: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(lambda: own(folder, text))


@each(
    ("variable", "text", "sentence"),
    [
        ("ACKWISE_BROKER", "a:1", "ACKWISE_BROKER is set, and there is no such entry; did you mean ACKWISE_BROKERS?"),
        ("ACKWISE_DEDUP_STORE", "memory://", "did you mean ACKWISE_DEDUP__STORE?"),
        ("ACKWISE_AGENTS__BILL__MAXBATCH", "5", "did you mean ACKWISE_AGENTS__BILL__MAX_BATCH?"),
        ("ACKWISE_AGENTS__MAX_BATCH", "5", "did you mean ACKWISE_AGENTS__NAME__MAX_BATCH?"),
        ("ACKWISE_CLIENT_OPTIONS", "x", "did you mean ACKWISE_CLIENT_OPTIONS__NAME?"),
        ("ACKWISE_DEDUP__EPOCH", "9" * 5000, "it must be a whole number"),
        ("ACKWISE_GROUP", "x", "ACKWISE_GROUP is set, and there is no such entry; the entries are ACKWISE_BROKERS"),
        ("ACKWISE_", "x", "ACKWISE_ is set, and there is no such entry"),
        ("ACKWISE_COMMIT_INTERVAL", "soon", "ACKWISE_COMMIT_INTERVAL is 'soon', which is not a duration"),
        ("ACKWISE_AGENTS__BILL__MAX_BATCH", "many", "ACKWISE_AGENTS__BILL__MAX_BATCH is 'many'; it must be a whole number"),
        ("ACKWISE_AGENTS__BILL__KEEP_ACK_INDEX_ON_ERROR", "1", "it must be true or false"),
        ("ACKWISE_BROKERS", "", "ACKWISE_BROKERS is empty"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused_with_its_name_and_advice(folder: Path, variable: str, text: str, sentence: str) -> None:
    assert sentence in refusal(lambda: environment(folder, **{variable: text}))


def test_an_agent_that_there_is_not_is_refused_with_the_nearest(folder: Path) -> None:
    in_file, in_environment = own(folder, "[agents.bil]\nmax_batch = 1"), {"ACKWISE_AGENTS__BIL__MAX_BATCH": "1"}
    assert refusal(lambda: in_file.agents([agent()])) == (
        "agents.bil.max_batch, set by ackwise.toml, names an agent that there is not; did you mean 'bill'?"
    )
    (folder / "ackwise.toml").unlink()
    assert "names an agent that there is not; did you mean 'bill'?" in refusal(
        lambda: environment(folder, **in_environment).agents([agent()])
    )


@each(
    ("variables", "resolve", "sentence"),
    [
        (
            {"ACKWISE_REVOKE_TIMEOUT": "31s", "ACKWISE_START": "latest"},
            lambda config: config.host_settings("billing", brokers="a:1"),
            "it must be at most 30 s, .* (revoke_timeout is set by ACKWISE_REVOKE_TIMEOUT)",
        ),
        (
            {"ACKWISE_DEDUP__RETENTION": "10s"},
            lambda config: config.dedup(Dedup("memory://")),
            "shorter than its lease .* (dedup.retention is set by ACKWISE_DEDUP__RETENTION)",
        ),
        (
            {"ACKWISE_AGENTS__BILL__MAX_BATCH": "0"},
            lambda config: config.agents([agent()]),
            "max_batch of agent 'bill' is 0; .* (agents.bill.max_batch is set by ACKWISE_AGENTS__BILL__MAX_BATCH)",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_source(folder: Path, variables: Any, resolve: Any, sentence: str) -> None:
    config = environment(folder, **variables)
    before, _, after = sentence.partition(".*")
    said = refusal(lambda: resolve(config))
    assert before in said
    assert said.endswith(after.strip())


def test_a_refusal_repeats_no_text_that_may_be_a_secret(folder: Path) -> None:
    secrets = {
        "ACKWISE_CLIENT_OPTIONS__ENABLE_AUTO_COMMIT": "hush",
        "ACKWISE_BROKERS": "sasl://me:hush@host:1",
        "ACKWISE_SASL_PASSWORD": "hush",
    }
    for variable, value in secrets.items():
        assert "hush" not in refusal(lambda: environment(folder, **{variable: value}).host_settings("billing"))  # noqa: B023  # called at once
    assert "hush" not in refusal(lambda: own(folder, '[dedup]\nstore = ["postgres://me:hush@host/db"]'))


@each("entry", ["COMMIT_INTERVAL", "DEDUP__EPOCH", "START", "AGENTS__BILL__KEEP_ACK_INDEX_ON_ERROR", "CONSUME_LATER__LEVELS"])
def test_a_password_in_a_url_is_not_repeated_where_no_url_belongs(folder: Path, entry: str) -> None:
    said = refusal(lambda: environment(folder, **{f"ACKWISE_{entry}": "redis://me:secret@claims/0?key=secret"}))
    assert said.startswith(f"ACKWISE_{entry} ")
    assert "secret" not in said


def test_a_table_in_the_place_of_a_value_is_not_repeated(folder: Path) -> None:
    said = refusal(lambda: own(folder, 'commit_interval.more = "redis://me:secret@claims/0"'))
    assert "is a table; it must be" in said
    assert "secret" not in said


def test_a_file_that_is_a_folder_is_one_sentence(folder: Path) -> None:
    (folder / "ackwise.toml").mkdir()
    assert "ackwise.toml can't be read (Is a directory); make it a readable file" in refusal(lambda: environment(folder))


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "ackwise.toml")
    assert refusal(lambda: read_config(folder, {})) == f"{folder / 'ackwise.toml'} is a pipe; make it a file, or take it away"


def test_a_file_that_is_nested_too_deeply_is_one_sentence(folder: Path) -> None:
    assert "nests its values too deeply to be read" in refusal(lambda: own(folder, "a = " + "[" * 100_000))


def test_a_working_folder_that_was_deleted_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refusal(lambda: read_config(None, {})).startswith("the working folder was deleted")


def test_a_file_that_is_not_utf8_is_one_sentence(folder: Path) -> None:
    (folder / "ackwise.toml").write_bytes(b"brokers = '\xff'")
    assert "ackwise.toml is not valid TOML" in refusal(lambda: environment(folder))


def test_an_app_reads_the_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(folder, 'brokers = "kafka:1"\n[agents.bill]\nmax_batch = 9')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACKWISE_START", "latest")
    app = App("billing", brokers="localhost:9")
    app.agent("orders", max_batch=2)(bill)
    assert (app.settings.brokers, app.settings.start, app.agents()[0].max_batch) == ("kafka:1", "latest", 9)


def test_an_app_may_be_given_its_configuration(folder: Path) -> None:
    assert App("billing", config=own(folder, "commit_interval = 0")).settings.commit_interval == 0.0


def test_every_field_of_the_settings_but_the_group_is_an_entry_and_middleware_is_one_beside_them() -> None:
    names = {field.name for field in dataclasses.fields(HostSettings)} - {"group", "instance"} | {"middleware"}
    assert names == {path[0] for path in ENTRIES if len(path) == 1} | {path[0] for path in ENTRIES if path[0].endswith("_options")}


def test_no_two_entries_have_one_variable() -> None:
    assert len({variable_of(path) for path in ENTRIES}) == len(ENTRIES)


def test_the_published_table_is_that_of_the_code() -> None:
    page = Path(__file__).parents[3] / "docs" / "config.md"
    assert table() in page.read_text(), "docs/config.md is behind the code; run `python -m ackwise.plugin.settings.entries`"
