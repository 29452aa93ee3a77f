"""Events that go to a Kafka topic and come back from it are the same events, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import typer
from tests.eventfiles import events_in
from tests.servers import RawKafka
from tests.shared import SharedKafka
from tests.spark.histories import History, write_parquet
from tests.spark.reconciling import name_of
from tests.waiting import until
from typer.testing import CliRunner

from ackwise import App, Batch, Events
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.events import EventCode, RunEvents
from ackwise.plugin.topics.group import Group
from ackwise.spark.commands.collect import collect
from ackwise.spark.commands.publish import Sent, send
from ackwise.spark.events.invalid_records import invalid_records
from ackwise.spark.events.logs import rolled_on
from ackwise.spark.events.sources import gathered
from ackwise.spark.topic.published import published
from ackwise.stores.journal import Journal
from ackwise.stores.journal.parquet import ROLLED_ON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typer.testing import Result

TOPIC = "events.of-all"
BOOT_ID = "0f9d2c3e-7a1b-4c55-9b1e-2d6f8a90c1de"
#: Not JSON; JSON with a number that is none; JSON without what makes it an event; nothing.
NEGATIVE = b'{"writer_id":1,"seq":-5,"event_type":3,"event_ts":1}'
STRANGE = [b"hello", b'{"writer_id":1,"seq":"x","event_type":3,"event_ts":1}', b'{"seq":1}', NEGATIVE, None]


def export(root: Path, history: History) -> list[Path]:
    """The events as the journal exports them: files without a hole."""
    runs: list[list[dict[str, Any]]] = []
    for event in sorted(history.events, key=lambda event: (event["writer_id"], event["seq"])):
        if not runs or (event["writer_id"], event["seq"]) != (runs[-1][-1]["writer_id"], runs[-1][-1]["seq"] + 1):
            runs.append([])
        runs[-1].append(event)
    return [
        write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / name_of(run[0]["writer_id"], run[0]["seq"], run[-1]["seq"]), run)
        for run in runs
    ]


def read(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of each file, by its name."""
    return {path.name: events_in(path) for path in (root / "events").rglob("*.parquet")}


async def bill(batch: Batch[bytes]) -> None:
    """What an app must have."""


def sent(brokers: str, root: Path, topic: str = TOPIC) -> Sent:
    return asyncio.run(send(group_of(brokers, root), root, topic))


def group_of(brokers: str, root: Path) -> Group:
    app = App("g", brokers=brokers)
    app.use(Events(str(root)))
    app.agent("orders")(bill)
    return app.group()


def collected(brokers: str, root: Path, topic: str = TOPIC) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(collect)
    return CliRunner().invoke(app, [topic, str(root), "--brokers", brokers])


async def make(brokers: str, topic: str) -> None:
    from aiokafka.admin import NewTopic

    raw = RawKafka(brokers)
    await raw.start()
    await raw._admin.create_topics([NewTopic(topic, 3, 1)])
    await until(raw._admin.list_topics, lambda topics: topic in topics)
    await raw.close()


async def delete(brokers: str, topic: str) -> None:
    raw = RawKafka(brokers)
    await raw.start()
    await raw._admin.delete_topics([topic])
    await until(raw._admin.list_topics, lambda topics: topic not in topics)
    await raw.close()


async def produce(brokers: str, *values: bytes | None, key: bytes) -> None:
    raw = RawKafka(brokers)
    await raw.start()
    await raw.produce(TOPIC, *values, key=key)
    await raw.close()


async def test_a_file_counts_as_published_only_once_the_topic_has_all_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, taken, away = History("g").say("w1", "0:CS").say("w2", "1:CS"), list[int](), [Unavailable("the broker is away")]
    files = export(tmp_path, history)

    class Topic:
        cluster, is_untouched = "c", False

        async def publish(self, records: Sequence[object]) -> None:
            if taken and away:
                raise away.pop()
            taken.append(len(records))

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Topic]:
        yield Topic()

    monkeypatch.setattr("ackwise.plugin.topics.eventtopic.event_topic", opened)
    with pytest.raises(Unavailable, match="the broker is away"):
        await send(group_of("nowhere:1", tmp_path), tmp_path, TOPIC)
    again = await send(group_of("nowhere:1", tmp_path), tmp_path, TOPIC)
    assert (again.files, sum(taken)) == (len(files) - 1, len(history.events))


class Journey(NamedTuple):
    """Files there and back, and what was said."""

    brokers: str
    there: Path
    back: Path
    files: Sequence[Path]
    sent: Sequence[Sent]
    answers: Sequence[Result]
    landed: Sequence[dict[str, list[dict[str, Any]]]]
    """What `back` held after each run of `collect`."""


@pytest.fixture(scope="module")
def journey(kafka: SharedKafka, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """Sent twice, collected, half of it sent again as after a crash, with invalid records in between, and collected again."""
    there, back = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("back") / "events of all"
    history = History("g").start("w1", note='a "quote" \u2713').say("w1", "RECEIVED_RANGE[0,9) 0:CS 1:CFB 1@2:CS").skip("w1", 3)
    history.say("w1", "2:CFX W=3", record_ts=-62_135_596_800_000_000, error="späť").say("w2", "3:CS", due_ts=253_402_300_799_999_000)
    export(there, history)
    asyncio.run(one_run(there))  # its session begins and ends
    files = sorted((there / "events").rglob("*.parquet"), key=lambda file: file.name)
    table = pq.ParquetFile(files[-1]).read()
    pq.write_table(table.replace_schema_metadata({ROLLED_ON: BOOT_ID}), files[-1])
    asyncio.run(make(kafka.bootstrap, TOPIC))
    runs, answers, landed = [sent(kafka.bootstrap, there), sent(kafka.bootstrap, there)], [], []
    answers.append(collected(kafka.bootstrap, back))
    landed.append(read(back))
    (ledger,) = (there / "published").glob(f"*/{TOPIC}")
    ledger.write_text(f"{files[0].name}\n{files[1].name[:20]}")
    asyncio.run(produce(kafka.bootstrap, *STRANGE, key=b"00000000000000ab"))
    asyncio.run(produce(kafka.bootstrap, b"not ours at all", key=b"somebody"))
    runs.append(sent(kafka.bootstrap, there))
    answers += [collected(kafka.bootstrap, back), collected(kafka.bootstrap, back)]
    landed.append(read(back))
    return Journey(kafka.bootstrap, there, back, files, runs, answers, landed)


def test_what_the_topic_has_already_is_not_sent_again_and_after_a_crash_what_was_not_noted_is(journey: Journey) -> None:
    first, second, third = journey.sent
    assert (first.files, first.events, first.writers) == (5, 39, 4)
    assert (second.files, second.events, third.files) == (0, 0, 4)


def test_the_files_that_come_back_have_the_same_names_and_events_though_some_came_twice(journey: Journey) -> None:
    assert journey.landed[0] == journey.landed[1] == read(journey.there)
    assert set(journey.landed[0]) == {file.name for file in journey.files}


def test_the_files_that_come_back_say_on_which_machine_the_log_of_a_dead_worker_was_rolled(journey: Journey) -> None:
    assert [*rolled_on(journey.files).values()] == [BOOT_ID]
    assert rolled_on((journey.back / "events").rglob("*.parquet")) == rolled_on(journey.files)


@pytest.mark.nightly
def test_a_topic_that_was_made_anew_is_sent_everything_again(kafka: SharedKafka, tmp_path: Path) -> None:
    topic = "events.made-anew"
    export(tmp_path, History("g").start("w1").say("w1", "0:CS W=1"))
    for _ in range(2):
        asyncio.run(make(kafka.bootstrap, topic))
        assert [sent(kafka.bootstrap, tmp_path, topic).files, sent(kafka.bootstrap, tmp_path, topic).files] == [2, 0]
        asyncio.run(delete(kafka.bootstrap, topic))


async def one_run(root: Path) -> None:
    journal = Journal(root, cluster="c", group_id="g")
    await journal.open()
    journal.record_run(RunEvents(EventCode.SUCCEEDED, "orders", 0, range(20, 40), "bill", 1, [5] * 20, range(100, 120)))
    await journal.close()


def test_each_run_of_collect_goes_on_where_the_last_one_ended(journey: Journey) -> None:
    assert [answer.exit_code for answer in journey.answers] == [0, 0, 0], [answer.output for answer in journey.answers]
    said = [answer.output.splitlines()[-1] for answer in journey.answers]
    assert said[0].startswith(f"39 events from {TOPIC}: ")
    assert ", and 6 records that are no events: " in said[1]
    assert said[2].startswith(f"0 events from {TOPIC}: ")


def test_a_record_that_is_no_event_is_remembered_and_makes_its_writer_doubtful(journey: Journey, tmp_path: Path) -> None:
    (found,) = invalid_records(journey.back)
    assert (found.records, found.writers) == (6, frozenset({0xAB}))
    assert found.first.startswith(f"{TOPIC}/0/")
    with gathered([journey.back], tmp_path / "live") as evidence:
        assert evidence.logs.unreadable == {0xAB}
        assert evidence.unreadable == (
            f"6 records of an event topic, such as {found.first}, are no events; once you know what they were, delete {found.folder}",
        )


def test_two_processes_do_not_publish_to_one_topic_at_once(journey: Journey) -> None:
    (ledger,) = (journey.there / "published").glob(f"*/{TOPIC}")
    cluster = ledger.parent.name
    with (
        published(journey.there, cluster, TOPIC, journey.files),
        pytest.raises(ConfigurationError, match=f"another process publishes the events of .* to {TOPIC} now; let it end"),
    ):
        sent(journey.brokers, journey.there)


def test_a_topic_that_is_not_there_is_named(journey: Journey) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no topic 'no-such' at {journey.brokers}; create it"):
        sent(journey.brokers, journey.there, "no-such")
    answer = collected(journey.brokers, journey.back, "no-such")
    assert f"there is no topic 'no-such' at {journey.brokers}; `ackwise publish` sends events to one that is there" in str(answer.exception)


def test_offsets_of_one_kafka_are_not_used_in_another(journey: Journey) -> None:
    answer = collected(journey.brokers.replace("127.0.0.1", "localhost"), journey.back)
    assert isinstance(answer.exception, ConfigurationError)
    assert f"was collected into {journey.back} from {journey.brokers}, and not from localhost" in str(answer.exception)


@pytest.mark.nightly
def test_records_that_were_deleted_before_they_were_collected_are_not_passed_over(journey: Journey, tmp_path: Path) -> None:
    """The checkpoint of a topic that was made anew since: what it says was read is not there."""
    topic = "made-anew"
    asyncio.run(make(journey.brokers, topic))
    assert sent(journey.brokers, journey.there, topic).events == 39
    assert collected(journey.brokers, tmp_path / "root", topic).exit_code == 0
    (offsets,) = (tmp_path / "root" / "collected" / topic / "checkpoint" / "offsets").glob("[0-9]*")
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:-1], f'{{"{topic}":{{"0":900,"1":900,"2":900}}}}']))
    offsets.with_name(f".{offsets.name}.crc").unlink()
    answer = collected(journey.brokers, tmp_path / "root", topic)
    assert isinstance(answer.exception, ConfigurationError)
    assert "made-anew has lost records before they were collected, or was recreated" in str(answer.exception)


def test_no_broker_and_no_name_of_a_topic_are_said_at_once(tmp_path: Path) -> None:
    answer = collected("127.0.0.1:1", tmp_path / "root")
    assert isinstance(answer.exception, Unavailable)
    assert "no broker answers (127.0.0.1:1: connection refused)" in str(answer.exception)
    for name in ("a,b", "..", "a/b", ""):
        assert "can't be the name of a topic" in str(collected("127.0.0.1:1", tmp_path / "root", name).exception)
    assert not (tmp_path / "root").exists()


def test_the_client_of_kafka_is_configured_as_its_own_tools_are(tmp_path: Path) -> None:
    from ackwise.spark.topic.reader import read_client_config

    file = tmp_path / "client.properties"
    file.write_text('# ours\nsecurity.protocol = SASL_SSL\n\nsasl.jaas.config=org.x.Login required password="a=b";\n')
    assert read_client_config(file) == {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'org.x.Login required password="a=b";'}
    file.write_text("security.protocol SASL_SSL\nsesame")
    with pytest.raises(ConfigurationError, match=r"line 1 of .* has no '='") as refused:
        read_client_config(file)
    assert "SASL_SSL" not in str(refused.value).partition(";")[0]
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_client_config(tmp_path / "nowhere")
