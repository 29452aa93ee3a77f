"""What the topics of a group are called, and what is done so that every copy fits into them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from tests.servers import PROPERTIES, RawKafka, kafka_or_skip
from tests.tables import each
from tests.waiting import turns

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.message.wire import BUDGET
from ackwise.middleware.policies.retry import DelayLevels, RetryInPlace
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.local.localkafka import EmbeddedBroker
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import _create, _described, _extend, _look, ensure_topics, set_append_time
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicplan import Topic, TopicReview, plan_topics, review_topics, waits_in_place
from ackwise.testing import MemoryKafka
from ackwise.testing.kafka.cluster import DEFAULTS

LEVELS = DelayLevels("1s 1h")
NAMES = TopicNames("billing")
DAY = 86_400_000
SOURCE = Topic(partitions=6, replication=3, max_message_bytes=1_048_588, retention_ms=7 * DAY, min_insync_replicas=2)
FITTING = SOURCE._replace(max_message_bytes=1_048_588 + BUDGET)


def test_a_group_has_five_topics_that_are_called_after_it() -> None:
    """S18: `%RETRY%group` in RocketMQ, and `%` is illegal in Kafka."""
    assert NAMES.all == ("billing.retry", "billing.dlq", "billing.delay")
    assert NAMES.own == {*NAMES.all, "billing.dlq.state", "billing.control"}
    assert TopicNames("billing", dead_letter="graveyard").dead_letter == "graveyard"


def test_names_that_kafka_or_the_group_can_t_live_with_are_refused() -> None:
    for group, dead_letter, sentence in (
        ("%RETRY%billing", None, "is not a legal topic name"),
        ("bill ing", None, "is not a legal topic name"),
        ("b" * 240, None, "has 250 characters and Kafka allows 249"),
        ("billing", "..", "is not a legal topic name"),
        ("billing", "", "is not a legal topic name"),
        ("billing", "billing.delay", "its messages would come back"),
        ("billing", "billing.control", "is the control topic of group 'billing'"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            TopicNames(group, dead_letter=dead_letter)


def plan(found: dict[str, Topic], sources: tuple[str, ...] = ("orders",)) -> Any:
    return plan_topics(NAMES, sources, found, longest_delay=3600)


def everything(topic: Topic = FITTING, **changes: Any) -> dict[str, Topic]:
    control = FITTING._replace(partitions=1, cleanup_policy="compact")
    found = {"orders": SOURCE, NAMES.control: control} | dict.fromkeys(NAMES.all, topic._replace(**changes))
    return found | {NAMES.delay: topic._replace(partitions=14, **{name: each for name, each in changes.items() if name != "partitions"})}


def test_a_source_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match="topic 'oders', which an agent consumes, does not exist"):
        plan({"orders": SOURCE}, ("orders", "oders"))


def test_missing_topics_are_as_wide_and_as_safe_as_the_sources_and_take_larger_messages() -> None:
    wide = SOURCE._replace(partitions=9, replication=1, max_message_bytes=500, min_insync_replicas=1)
    todo = plan({"orders": SOURCE, "clicks": wide}, ("orders", "clicks"))
    assert (todo.create, todo.extend) == (NAMES.all, ())
    assert todo.like == SOURCE._replace(partitions=9, max_message_bytes=SOURCE.max_message_bytes + BUDGET)


def test_copies_live_as_long_as_messages_and_outlive_every_delay_and_dead_letters_are_kept_for_ever() -> None:
    for source, retry in ((7 * DAY, 7 * DAY), (1000, 7_200_000), (-1, -1)):
        made = plan({"orders": SOURCE._replace(retention_ms=source)})
        assert (made.retention("billing.retry"), made.retention("billing.dlq")) == (retry, -1)


def test_topics_that_fit_are_left_alone_and_narrow_ones_are_extended() -> None:
    assert plan(everything())[:2] == ((), ())
    assert plan(everything() | {"billing.retry": FITTING._replace(partitions=5)})[:2] == ((), ("billing.retry",))
    assert plan(everything(partitions=12, retention_ms=-1))[:2] == ((), ())


def test_topics_that_would_lose_a_copy_are_refused() -> None:
    """S12: RocketMQ reports success, and the message is gone."""
    lossy: list[tuple[dict[str, Any], str]] = [
        ({"max_message_bytes": FITTING.max_message_bytes - 1}, "'billing.retry' takes messages of at most 1179659 bytes"),
        ({"retention_ms": 3_599_999}, "the longest delay is 1h; raise its retention.ms"),
        ({"cleanup_policy": "compact,delete"}, "'billing.retry' is compacted"),
        ({"retention_bytes": 0}, "'billing.retry' keeps 0 bytes .*; set its retention.bytes to -1"),
    ]
    for changes, sentence in lossy:
        with pytest.raises(ConfigurationError, match=sentence):
            plan(everything(**changes))
    dead = FITTING._replace(retention_bytes=1, retention_ms=1)
    assert plan(everything() | {"billing.dlq": dead})[:2] == ((), ()), "how long dead letters stay is the user's affair"


def test_each_topic_in_which_something_waits_is_refused_with_a_limit_of_bytes() -> None:
    found = everything() | {"orders": SOURCE._replace(retention_bytes=1_000)}
    for topic in (NAMES.retry, NAMES.delay):
        limited = found | {topic: found[topic]._replace(retention_bytes=1_000_000)}
        with pytest.raises(ConfigurationError, match=rf"topic '{topic}' keeps 1000000 bytes of each partition"):
            plan(limited)


@each("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_dead_letter_topic_is_refused(policy: str) -> None:
    for topic in ("billing.dlq", "letters"):
        names = TopicNames("billing", dead_letter=topic)
        found = dict.fromkeys(names.all, FITTING) | {"orders": SOURCE, topic: FITTING._replace(cleanup_policy=policy)}
        with pytest.raises(ConfigurationError, match=rf"dead-letter topic '{topic}' is compacted: it takes no dead letter without a key"):
            plan_topics(names, ["orders"], found, longest_delay=3600.0)


@pytest.mark.parametrize("unknown", ["min.insync.replicas", "retention.bytes", "message.timestamp.type", "max.message.bytes"])
async def test_a_broker_that_does_not_describe_a_setting_is_taken_as_it_is(unknown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redpanda knows no min.insync.replicas."""
    described = {name: value for name, value in DEFAULTS.items() if name != unknown}
    monkeypatch.setattr("ackwise.testing.kafka.topicrequests.DEFAULTS", described)
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        settings = HostSettings(kafka.bootstrap, "billing")
        await ensure_topics(settings, NAMES, ["orders"], levels=LEVELS)
        assert ("min.insync.replicas" in kafka._cluster.topics["billing.retry"].configs) == (unknown != "min.insync.replicas")
        await ensure_topics(settings, NAMES, ["orders"], levels=LEVELS)


def test_topics_are_as_safe_as_the_sources_of_which_that_is_known() -> None:
    unknown = SOURCE._replace(min_insync_replicas=None)
    assert plan({"orders": unknown}).like.min_insync_replicas is None
    both = plan_topics(NAMES, ["orders", "others"], {"orders": unknown, "others": SOURCE}, longest_delay=1.0)
    assert both.like.min_insync_replicas == 2


def test_the_delay_topic_has_a_partition_for_each_wait_however_wide_the_sources_are() -> None:
    todo = plan({"orders": SOURCE})
    assert (todo.partitions("billing.delay"), todo.partitions("billing.retry")) == (14, 6)
    assert (todo.timestamp_type("billing.delay"), todo.timestamp_type("billing.retry")) == ("LogAppendTime", "CreateTime")
    assert plan(everything())[:2] == ((), ())
    narrow = everything() | {"billing.delay": FITTING._replace(partitions=4)}
    assert (plan(narrow).extend, plan(narrow).required) == (("billing.delay",), ())
    for lanes, sends, rungs in ((1, False, 14), (1, True, 27), (4, False, 105)):
        assert HostSettings("nowhere:1", "billing", lanes=lanes, delayed_sends=sends).rungs == rungs
    with pytest.raises(ConfigurationError, match="lanes is 0; give a whole number from 1 to 100"):
        HostSettings("nowhere:1", "billing", lanes=0)


def test_a_delay_topic_outlives_its_longest_rung_twice_and_not_the_longest_delay() -> None:
    for source, kept in ((1000, 2 * DAY), (7 * DAY, 7 * DAY), (-1, -1)):
        assert plan({"orders": SOURCE._replace(retention_ms=source)}).retention("billing.delay") == kept


def test_a_delay_topic_that_would_lose_or_strand_copies_is_refused() -> None:
    delay = everything()["billing.delay"]
    for changes, sentence in (
        ({"cleanup_policy": "compact"}, "has cleanup.policy=compact, .*; set it to delete"),
        ({"cleanup_policy": "compact,delete"}, "has cleanup.policy=compact,delete"),
        ({"retention_ms": 2 * DAY - 1}, "its longest rung is 24h; raise its retention.ms to twice that"),
        ({"retention_bytes": 10}, "set its retention.bytes to -1, or copies are deleted before they are due"),
        ({"partitions": 1}, "has one partition, which is for cancellations, so nothing can wait; give it 14 partitions"),
    ):
        with pytest.raises(ConfigurationError, match=f"topic 'billing.delay' .*{sentence}"):
            plan(everything() | {"billing.delay": delay._replace(**changes)})
    few = delay._replace(partitions=4, retention_ms=120_000)
    assert plan(everything() | {"billing.delay": few}).create == (), "its longest rung is a minute"


def test_what_missing_rungs_cost_is_said() -> None:
    few = everything()["billing.delay"]._replace(partitions=4, timestamp_type="LogAppendTime")
    advice = review(everything() | {"billing.delay": few})["billing.delay"].advice
    assert advice is not None
    assert (
        "has 4 partitions, so rungs are missing (2s 5s 30s 2m 5m 10m 30m 1h 6h 24h): a copy that waits for 1h is written 60 times" in advice
    )
    assert review(everything() | {"billing.delay": few._replace(partitions=14)})["billing.delay"].advice is None


def review(found: dict[str, Topic], sources: tuple[str, ...] = ("orders",)) -> dict[str, TopicReview]:
    return {line.topic: line for line in review_topics(NAMES, sources, found, longest_delay=3600)}


def test_every_topic_that_a_group_needs_is_reviewed_sources_first() -> None:
    lines = review(everything() | {"clicks": SOURCE}, ("orders", "clicks"))
    assert [(line.topic, line.role) for line in lines.values()] == [
        ("clicks", "source"),
        ("orders", "source"),
        ("billing.retry", "retry"),
        ("billing.dlq", "dead letter"),
        ("billing.delay", "delay"),
        ("billing.control", "control"),
    ]
    assert {line.todo for line in lines.values()} == {"nothing"}


def test_a_review_says_the_least_that_a_topic_must_have_and_all_that_is_wrong_with_it_at_once() -> None:
    lines = review({"orders": SOURCE})
    assert lines["billing.retry"].wanted == (6, FITTING.max_message_bytes, 3_600_000)
    assert lines["billing.dlq"].wanted == (6, FITTING.max_message_bytes, None)
    assert {lines[topic].todo for topic in NAMES.all} == {"create"}
    line = review(everything(retention_ms=1000, cleanup_policy="compact", partitions=1))["billing.retry"]
    assert (line.todo, len(line.faults)) == ("mend", 2)
    lines = review({"orders": SOURCE, "billing.retry": FITTING._replace(partitions=1)}, ("orders", "oders"))
    assert (lines["oders"].todo, lines["billing.retry"].todo, lines["billing.dlq"].todo) == ("mend", "extend", "create")
    assert review({})["billing.retry"].wanted is None


async def test_an_agent_can_t_consume_a_topic_of_its_own_group() -> None:
    with pytest.raises(ConfigurationError, match="consume it in another group"):
        await ensure_topics(HostSettings("nowhere:1", "billing"), NAMES, ["billing.dlq"], levels=LEVELS)


async def test_brokers_that_do_not_answer_are_named_and_secrets_are_not(caplog: pytest.LogCaptureFixture) -> None:
    settings = HostSettings("127.0.0.1:1", "billing", client_options={"sasl_plain_password": "hush"})
    with pytest.raises(Unavailable, match=r"no broker answers \(127\.0\.0\.1:1: connection refused\)") as refusal:
        await ensure_topics(settings, NAMES, ["orders"], levels=LEVELS)
    assert "hush" not in str(refusal.value) + caplog.text


def test_a_source_that_forgets_a_message_while_it_waits_in_place_is_refused() -> None:
    async def never(_: object) -> None: ...

    found, in_place = everything() | {"orders": SOURCE._replace(retention_ms=3_600_000)}, dict[str, float]()
    for limit, todo in ((60, "nothing"), (61, "mend")):
        ordered = Agent("bill", ("orders",), "batch", never, lambda value: value, order="key", in_place=RetryInPlace(limit))
        in_place = waits_in_place([ordered], ["orders"])
        (source, *_) = review_topics(NAMES, ["orders"], found, longest_delay=60, in_place=in_place)
        assert source.todo == todo
    with pytest.raises(ConfigurationError, match=r"'orders' keeps messages for 1h, .* may let one wait in place for 1830s"):
        plan_topics(NAMES, ["orders"], found, longest_delay=60, in_place=in_place)


async def test_while_the_brokers_name_no_controller_nobody_is_asked_to_make_topics() -> None:
    """As after a start of theirs; it is looked again until they do."""
    looked: list[str] = []

    async def look() -> None:
        looked.append("for a controller")

    admin: Any = SimpleNamespace(_client=SimpleNamespace(cluster=SimpleNamespace(controller=None), force_metadata_update=look))
    for make, found in ((_create, {"orders": SOURCE}), (_extend, everything(partitions=1))):
        plan = plan_topics(NAMES, ["orders"], found, longest_delay=3600)
        assert plan.create or plan.extend
        await make(admin, plan)
    assert len(looked) == 2


async def test_no_request_makes_more_partitions_than_kafka_takes() -> None:
    for partitions, requests in ((3, 1), (500, 1), (1000, 2), (5000, 3)):
        asked: list[list[Any]] = []

        async def create_topics(topics: list[Any], asked: list[list[Any]] = asked) -> Any:
            asked.append(topics)
            return SimpleNamespace(topic_errors=[(topic.name, 0) for topic in topics])

        admin: Any = SimpleNamespace(_client=SimpleNamespace(cluster=SimpleNamespace(controller=1)), create_topics=create_topics)
        wide = plan_topics(NAMES, ["orders"], {"orders": SOURCE._replace(partitions=partitions)}, longest_delay=3600)
        await _create(admin, wide)
        made = [topic for topics in asked for topic in topics]
        assert [topic.name for topic in made] == [*wide.create]
        assert {topic.num_partitions for topic in made if topic.name != NAMES.delay} == {partitions}
        assert (len(asked), len(wide.create)) == (requests, 3)
        size = {topic.topic_configs.get("retention.bytes") for topic in made}
        assert size == {"-1"}, "a size limit of the broker would delete copies that wait"


def test_options_that_a_client_refuses_are_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="client_options has security_protocol='blue'; it is one of PLAINTEXT, SSL"):
        HostSettings("127.0.0.1:1", "billing", client_options={"security_protocol": "blue"})


class Group:
    """A group that consumes one new topic, and what a test asks of the broker past the code that is tested."""

    def __init__(self, bootstrap: str, admin: AIOKafkaAdminClient, group: str) -> None:
        self.settings = HostSettings(bootstrap, group)
        self.names = TopicNames(group)
        self.source = f"{group}.orders"
        self._admin = admin

    async def create(self, topic: str, partitions: int = 3, **config: object) -> None:
        configs = {name.replace("_", "."): str(value) for name, value in config.items()}
        response: Any = await self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
        assert [code for _, code, _ in response.topic_errors] == [0]

    async def ensure(self, *, made: Collection[str] = (), **settings: Any) -> None:
        await ensure_topics(replace(self.settings, **settings), self.names, [self.source], levels=LEVELS, made=made)

    async def partitions(self) -> dict[str, int]:
        """How many partitions each topic of the group has."""
        ours = [topic for topic in await self._admin.list_topics() if topic.startswith(f"{self.settings.group}.")]
        described = await self._admin.describe_topics(ours) if ours else []
        return {topic["topic"].removeprefix(self.settings.group): len(topic["partitions"]) for topic in described}

    async def config(self, topic: str) -> dict[str, str]:
        """What holds for a topic, once the broker knows it: it answers whoever creates one before."""
        while True:
            (response,) = await self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            described: Any = response
            code, _, _, _, entries = described.resources[0]
            if code == 0:
                return {name: value for name, value, *_ in entries}
            assert code == UnknownTopicOrPartitionError.errno
            await asyncio.sleep(0.05)


@asynccontextmanager
async def group_on(bootstrap: str, name: str) -> AsyncIterator[Group]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    yield Group(bootstrap, admin, name)
    await admin.close()


@pytest.fixture
async def group(raw_kafka: RawKafka) -> AsyncIterator[Group]:
    async with group_on(raw_kafka.bootstrap, raw_kafka.new_group()) as group:
        yield group


WHOLE_GROUP = {".orders": 3, ".retry": 3, ".dlq": 3, ".delay": 14, ".control": 2}


async def test_missing_topics_are_created_to_fit_and_a_second_start_changes_nothing(group: Group) -> None:
    await group.create(group.source, max_message_bytes=5000, retention_ms=DAY)
    await group.ensure()
    assert await group.partitions() == WHOLE_GROUP
    config = await group.config(group.names.delay)
    assert (config["max.message.bytes"], config["retention.ms"], config["cleanup.policy"]) == (str(5000 + BUDGET), str(2 * DAY), "delete")
    assert config["message.timestamp.type"] == "LogAppendTime"
    assert (await group.config(group.names.retry))["message.timestamp.type"] == "CreateTime"
    await group.ensure(create_topics="never")


async def test_a_delay_topic_that_exists_gets_the_timestamps_of_its_broker_and_keeps_what_was_set_for_it(group: Group) -> None:
    topic = group.names.delay
    await group.create(topic, max_message_bytes=7000, retention_ms=DAY, segment_bytes=20_000_000)
    before = await group.config(topic)
    await set_append_time(group.settings, [topic])
    assert await group.config(topic) == before | {"message.timestamp.type": "LogAppendTime"}
    assert (before["max.message.bytes"], before["segment.bytes"]) == ("7000", "20000000")


async def test_a_topic_that_a_broker_does_not_know_yet_keeps_what_was_set_for_it() -> None:
    async with MemoryKafka() as kafka, group_on(kafka.bootstrap, "billing") as group:
        await group.create("billing.delay", retention_ms=DAY)
        refused = kafka.faults.refuse("DescribeConfigs", UnknownTopicOrPartitionError, times=2)
        await set_append_time(group.settings, ["billing.delay"])
        config = await group.config("billing.delay")
        assert (refused.met, config["message.timestamp.type"], config["retention.ms"]) == (2, "LogAppendTime", str(DAY))


async def test_where_a_topic_s_settings_may_not_be_read_its_timestamps_are_not_changed() -> None:
    async with MemoryKafka() as kafka, group_on(kafka.bootstrap, "billing") as group:
        await group.create("billing.delay", retention_ms=DAY)
        before = await group.config("billing.delay")
        refused = kafka.faults.refuse("DescribeConfigs", TopicAuthorizationFailedError, times=None)
        with pytest.raises(ConfigurationError, match=r"the settings of topic 'billing.delay' can't be read \(.*; give this client"):
            await set_append_time(group.settings, ["billing.delay"])
        refused.end()
        assert await group.config("billing.delay") == before


async def test_timestamps_are_set_once_a_broker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []

    async def describe(admin: AIOKafkaAdminClient, resources: list[ConfigResource]) -> Any:
        """The second time as if the broker had not heard yet what the controller did."""
        answers.append(await _described(admin, resources))
        return answers[0] if len(answers) == 2 else answers[-1]

    monkeypatch.setattr("ackwise.plugin.topics.topicadmin._described", describe)
    async with MemoryKafka() as kafka, group_on(kafka.bootstrap, "billing") as group:
        await group.create("billing.delay")
        await set_append_time(group.settings, ["billing.delay"])
    assert len(answers) == 3


async def test_a_source_that_this_worker_is_making_is_waited_for_and_one_that_the_broker_does_not_know_yet(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers before it lists a new topic, and agents of Faust make theirs while it is asked."""
    asked, looks = asyncio.Event(), 0

    async def look(admin: AIOKafkaAdminClient, topics: Collection[str]) -> dict[str, Topic]:
        nonlocal looks
        looks += 1
        found = await _look(admin, topics)
        asked.set()
        return {name: topic for name, topic in found.items() if looks > 3 or name != group.source}

    monkeypatch.setattr("ackwise.plugin.topics.topicadmin._look", look)
    ensuring = asyncio.create_task(group.ensure(made=[group.source]))
    await asked.wait()
    await group.create(group.source)
    await ensuring
    assert await group.partitions() == WHOLE_GROUP
    looks = 0
    await group.ensure()  # nobody makes it, and it is there
    assert looks > 3


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.slow  # it needs its own broker: one that creates the topics that it is asked for, as they do by default
async def test_asking_creates_nothing_on_a_broker_that_creates_what_it_is_asked_for(tmp_path: Path) -> None:
    with kafka_or_skip(tmp_path, {**PROPERTIES, "auto.create.topics.enable": "true"}) as broker:
        async with group_on(broker.bootstrap, "billing") as group:
            with pytest.raises(ConfigurationError, match="does not exist"):
                await group.ensure()
            assert await group.partitions() == {}
            await group.create(group.source)
            await group.ensure()
            assert await group.partitions() == WHOLE_GROUP


async def test_workers_that_start_at_the_same_time_do_not_disturb_each_other(group: Group) -> None:
    await group.create(group.source)
    await group.create(group.names.retry, 1, max_message_bytes=2_000_000)
    await asyncio.gather(*(group.ensure() for _ in range(4)))  # each extends the narrow one
    assert await group.partitions() == WHOLE_GROUP


async def test_with_never_what_is_missing_is_refused(group: Group) -> None:
    await group.create(group.source)
    with pytest.raises(
        ConfigurationError, match=r"must exist, since .* create them with 14 partitions for '.*\.delay', 3 for each other one"
    ):
        await group.ensure(create_topics="never")
    assert await group.partitions() == {".orders": 3}


async def test_a_broker_that_creates_topics_when_asked_for_them_is_relied_on(embedded_broker: EmbeddedBroker) -> None:
    settings = HostSettings(embedded_broker.bootstrap, "billing", create_topics="broker")
    await ensure_topics(settings, NAMES, ["orders"], levels=LEVELS)
    with pytest.raises(ConfigurationError, match="set create_topics to 'broker'"):
        await ensure_topics(replace(settings, create_topics="auto"), NAMES, ["orders"], levels=LEVELS)


class Admin:
    """An admin client of aiokafka, all of whose calls are cancelled from inside, or wait forever."""

    def __init__(self, cancelled: str) -> None:
        self._cancelled = cancelled

    async def start(self) -> None:
        self._call("start")

    async def list_topics(self) -> list[str]:
        self._call("list_topics")
        await asyncio.get_running_loop().create_future()
        return []

    async def close(self) -> None:
        self._call("close")

    def _call(self, call: str) -> None:
        if call == self._cancelled:
            raise asyncio.CancelledError


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    async def listening(_: str) -> None: ...

    def use(cancelled: str) -> None:
        monkeypatch.setattr("ackwise.plugin.topics.topicadmin.AIOKafkaAdminClient", lambda **_: Admin(cancelled))

    monkeypatch.setattr("ackwise.plugin.topics.topicadmin.require_broker", listening)
    return use


async def test_a_call_that_is_cancelled_from_inside_is_brokers_that_do_not_answer(admin: Callable[[str], None]) -> None:
    for call in ("start", "list_topics"):
        admin(call)
        with pytest.raises(Unavailable, match="do not answer questions about topics"):
            await ensure_topics(HostSettings("nowhere:1", "billing"), NAMES, ["orders"], levels=LEVELS)


async def test_a_look_at_topics_that_somebody_cancels_is_cancelled_whatever_the_client_closes_with(admin: Callable[[str], None]) -> None:
    admin("close")
    looking = asyncio.create_task(ensure_topics(HostSettings("nowhere:1", "billing"), NAMES, ["orders"], levels=LEVELS))
    await turns(5)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
