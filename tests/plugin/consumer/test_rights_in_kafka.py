"""Each role of a group does its work in a real Kafka with exactly the rights of the table, and says which right it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from confluent_kafka import admin as confluent
from tests.servers import PROPERTIES, kafka_or_skip
from tests.waiting import until

from ackwise import App, ConsumeLater, Later, Message, Producer, Reject
from ackwise.middleware.flow.pausing import Target
from ackwise.plugin.delays.cancellations import cancel
from ackwise.plugin.local import localkafka
from ackwise.plugin.operate.deadletter import Selection
from ackwise.plugin.operate.deadlettertopics import list_letters, place_of_app
from ackwise.plugin.operate.groupstatus import Standing
from ackwise.plugin.operate.resenddeadletters import redrive
from ackwise.plugin.operate.statusreader import look_at
from ackwise.plugin.outbox.outboxrelay import relay_group
from ackwise.plugin.topics.controltopic import write_control
from ackwise.plugin.topics.topicexport import RIGHTS, ROLES, Resource, Right, Role, rights_of
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicplan import Topic, made_topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]  # its own broker, with users and ACLs

SOURCE, GROUP = "orders", "billing"
PASSWORD: Final = "s3cret"
USERS: Final = tuple(f"user{number}" for number in range(100))

clients: Any = confluent  # its types leave out what it exports


class Shop:
    """A broker that asks who its clients are, with the topics of a group."""

    def __init__(self, plain: str, guarded: str) -> None:
        self.names = TopicNames(GROUP)
        self._guarded = guarded
        self._users = iter(USERS)
        self._admin = clients.AdminClient({"bootstrap.servers": plain})
        self._numbers = iter(range(10**6))

    def rights(self, role: Role) -> list[Right]:
        """Those of the table."""
        return rights_of(role, self.names, [SOURCE], targets=[SOURCE])

    def topic_or_group(self, resource: Resource) -> str:
        """Its name."""
        names = self.names
        topics = {"retry": names.retry, "delay": names.delay, "dead letters": names.dead_letter, "state": names.state}
        others = {"control": names.control, "group": names.group, "relay's group": names.relay_group}
        return (topics | others).get(resource, SOURCE)

    def make_topics(self) -> None:
        """Those of the group as `ackwise topics export` prints them, and its source."""
        like, rungs = Topic(1, 1, 1048588, 604800000), self.app(self.everything()).group().settings.rungs
        made = made_topics(self.names, [SOURCE], {SOURCE: like}, longest_delay=3600.0, rungs=rungs)
        new = [clients.NewTopic(each.name, each.partitions, each.replication, config=each.config) for each in made]
        for future in self._admin.create_topics([clients.NewTopic(SOURCE, 1, 1), *new]).values():
            future.result(60)

    def value(self, what: str) -> bytes:
        """One that no other message has."""
        return f"{what} {next(self._numbers)}".encode()

    def everything(self) -> dict[str, Any]:
        """The options of a client that may do everything."""
        return self._options("root")

    async def user(self, rights: Sequence[Right]) -> dict[str, Any]:
        """The options of a client that may do this and nothing else."""
        name = next(self._users)
        kinds = {"topic": clients.ResourceType.TOPIC, "group": clients.ResourceType.GROUP}
        acls = [
            clients.AclBinding(
                kinds[right.kind],
                right.name,
                clients.ResourcePatternType.LITERAL,
                f"User:{name}",
                "*",
                OPERATIONS[operation],
                clients.AclPermissionType.ALLOW,
            )
            for right in rights
            for operation in right.operations
        ]
        for future in self._admin.create_acls(acls).values():
            future.result(60)
        of_user = clients.AclBindingFilter(
            clients.ResourceType.ANY,
            None,
            clients.ResourcePatternType.ANY,
            f"User:{name}",
            None,
            clients.AclOperation.ANY,
            clients.AclPermissionType.ANY,
        )
        await until(lambda: len(self._admin.describe_acls(of_user).result(60)) == len(acls))  # the broker learns of them after it answered
        return self._options(name)

    def _options(self, user: str) -> dict[str, Any]:
        names = ("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
        return dict(zip(names, ("SASL_PLAINTEXT", "PLAIN", user, PASSWORD), strict=True))

    def app(self, options: dict[str, Any], seen: list[bytes] | None = None) -> App:
        """One whose messages come back once after a second, after an hour, or are dead, by the word that they start with."""
        app = App(
            GROUP, brokers=self._guarded, client_options=options, relay="apart", create_topics="never", delayed_sends=True,
        )  # fmt: skip
        app.use(ConsumeLater(levels="3s 1h"))
        seen = [] if seen is None else seen

        @app.agent(SOURCE)
        async def bill(message: Message[bytes]) -> None:
            seen.append(message.value)
            if message.value.startswith(b"dead"):
                raise Reject(message.value.decode())
            if message.value.startswith(b"long"):
                raise Later(level=2)
            if message.value.startswith(b"later") and seen.count(message.value) == 1:
                raise Later(level=1)

        return app

    def producer(self, options: dict[str, Any]) -> Producer:
        return Producer(self._guarded, group=GROUP, client_options=options, timeout=5)


OPERATIONS: Final = {
    "Read": clients.AclOperation.READ,
    "Write": clients.AclOperation.WRITE,
    "Describe": clients.AclOperation.DESCRIBE,
    "DescribeConfigs": clients.AclOperation.DESCRIBE_CONFIGS,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    controller, plain, guarded = localkafka._free_ports(3)
    known = " ".join(f'user_{user}="{PASSWORD}"' for user in ("root", *USERS))
    ours = {
        "listeners": f"CONTROLLER://127.0.0.1:{controller},PLAIN://127.0.0.1:{plain},GUARDED://127.0.0.1:{guarded}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:root",
        "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};",
    }
    with kafka_or_skip(tmp_path_factory.mktemp("guarded"), {**PROPERTIES, **ours}):
        found = Shop(f"127.0.0.1:{plain}", f"127.0.0.1:{guarded}")
        found.make_topics()
        yield found


@asynccontextmanager
async def relaying(app: App) -> AsyncIterator[asyncio.Task[None]]:
    """A relay apart while the block runs."""
    stop = asyncio.Event()
    task = asyncio.create_task(relay_group(app.group(), stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task])


async def consumes(shop: Shop, options: dict[str, Any]) -> None:
    """A worker: a message comes back, another one is a dead letter, both are committed."""
    later, dead = shop.value("later"), shop.value("dead")
    async with relaying(shop.app(shop.everything())):
        await worked(shop, options, later, dead)


async def relays(shop: Shop, options: dict[str, Any]) -> None:
    """A relay apart: it brings back the message of a worker that may do everything, and what is sent later."""
    async with relaying(shop.app(options)) as relay:
        await worked(shop, shop.everything(), shop.value("later"), shop.value("soon"), by=relay)


async def worked(shop: Shop, options: dict[str, Any], *values: bytes, by: asyncio.Task[None] | None = None) -> None:
    seen: list[bytes] = []
    async with shop.app(options, seen).running() as worker, shop.producer(shop.everything()) as producer:
        ended = asyncio.ensure_future(worker.ended())
        for value in values:
            await producer.send(SOURCE, value, delay=1 if value.startswith(b"soon") else None)
        try:
            await until(lambda: all(seen.count(value) == (2 if value.startswith(b"later") else 1) for value in values), by=by or ended)
        finally:
            ended.cancel()


async def sends(shop: Shop, options: dict[str, Any]) -> None:
    """A producer: now, and later."""
    async with shop.producer(options) as producer:
        await producer.send(SOURCE, shop.value("now"))
        await producer.send(SOURCE, shop.value("soon"), delay=1)


async def cancels(shop: Shop, options: dict[str, Any]) -> None:
    """A canceller: a message that waits for an hour does not come back."""
    value = shop.value("long")
    seen: list[bytes] = []
    async with shop.app(shop.everything(), seen).running(), shop.producer(shop.everything()) as producer:
        sent: Any = await producer.send(SOURCE, value)
        await until(lambda: value in seen)
    at = f"{SOURCE}/{sent.partition}/{sent.offset}"
    assert await cancel(shop.app(options).group(), [at]) == {at: "accepted"}


async def operates(shop: Shop, options: dict[str, Any]) -> None:
    """An operator: looks at dead letters, sends them again, says to all workers that a handler goes on, and asks how the group is."""
    for each in (shop.everything(), options):  # the second finds what the first noted
        await worked(shop, shop.everything(), shop.value("dead"))
        await operated(shop, each)
    await compared(shop, options)


async def operated(shop: Shop, options: dict[str, Any]) -> None:
    place = place_of_app(shop.app(options).group())
    assert (await list_letters(place, Selection(), 1))[0].newest
    assert (await redrive(place, Selection(), execute=True)).is_done
    await write_control(place.settings, place.names, Target(handler="bill"), paused=False)


async def looks(shop: Shop, options: dict[str, Any]) -> None:
    """A dashboard: it shows of a group what one shows that may do everything."""
    await worked(shop, shop.everything(), shop.value("dead"))
    await operated(shop, shop.everything())
    await compared(shop, options)


async def compared(shop: Shop, options: dict[str, Any]) -> None:
    """Fail if the group is not shown as to a client that may do everything."""
    async with relaying(shop.app(shop.everything())), shop.app(shop.everything()).running():
        place = place_of_app(shop.app(shop.everything()).group())
        standing = await until(lambda: look_at(place), lambda found: found.workers and found.relays)
        hidden = shown(standing) - shown(await look_at(place_of_app(shop.app(options).group())))
    assert not hidden, f"hidden: {sorted(hidden)}"


def shown(standing: Standing) -> set[str]:
    """What a dashboard shows of the group, without what changes by itself."""
    found = {f"partitions of {each.topic}" for each in standing.partitions} | {f"rungs of {each.topic}" for each in standing.levels}
    found |= {"workers"} if standing.workers else set()
    found |= {"relays"} if standing.relays else set()
    if standing.letters is not None:
        found |= {"letters"} if standing.letters.letters else set()
        found |= {"redriven letters"} if standing.letters.open < standing.letters.letters else set()
    return found


WORK: Final[dict[Role, Callable[[Shop, dict[str, Any]], Awaitable[None]]]] = {
    "worker": consumes,
    "relay": relays,
    "producer": sends,
    "canceller": cancels,
    "operator": operates,
    "dashboard": looks,
}


async def test_all_roles_do_their_work_together_each_with_its_own_rights_alone(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    mine = {role: await shop.user(shop.rights(role)) for role in ROLES}
    later, dead, long, soon = map(shop.value, ("later", "dead", "long", "soon"))
    seen: list[bytes] = []
    async with (
        relaying(shop.app(mine["relay"])),
        shop.app(mine["worker"], seen).running() as worker,
        shop.producer(mine["producer"]) as producer,
    ):
        ended = asyncio.ensure_future(worker.ended())
        try:
            sent = {value: await producer.send(SOURCE, value) for value in (later, dead, long)}
            await producer.send(SOURCE, soon, delay=1)
            await until(lambda: (seen.count(later), seen.count(dead), seen.count(long), seen.count(soon)) == (2, 1, 1, 1), by=ended)
            waits: Any = sent[long]
            place = f"{SOURCE}/{waits.partition}/{waits.offset}"
            assert await cancel(shop.app(mine["canceller"]).group(), [place]) == {place: "accepted"}
            await until(lambda: list_open(shop, mine["operator"]))
            await operated(shop, mine["operator"])
            await until(lambda: seen.count(dead) == 2, by=ended)
            await shows_all(shop, mine["dashboard"])
        finally:
            ended.cancel()
    assert "uthorization" not in caplog.text


async def list_open(shop: Shop, options: dict[str, Any]) -> bool:
    return bool((await list_letters(place_of_app(shop.app(options).group()), Selection(), 1))[0].newest)


async def shows_all(shop: Shop, options: dict[str, Any]) -> None:
    """A dashboard shows every part of the group, so nothing of it is hidden."""
    standing = await until(
        lambda: look_at(place_of_app(shop.app(options).group())), lambda found: found.workers and found.letters and found.letters.letters
    )
    assert {partition.topic for partition in standing.partitions} == {SOURCE, f"{GROUP}.retry"}
    assert (len(standing.members), standing.relays) == (1, 1)
    assert len(standing.levels) == 13


#: What is said where one right of a role is taken away.
LACKS: Final[dict[tuple[Role, Resource, str], str]] = {
    ("worker", "sources", "Read"): "topic 'orders', which an agent consumes, does not exist or is hidden from this client",
    ("worker", "sources", "DescribeConfigs"): "give this client DescribeConfigs on it",
    ("worker", "retry", "Read"): "'billing.retry' must exist",
    ("worker", "retry", "DescribeConfigs"): "the settings of topic 'billing.retry' can't be read",
    ("worker", "delay", "Write"): "'billing.delay' must exist",
    ("worker", "delay", "DescribeConfigs"): "the settings of topic 'billing.delay' can't be read",
    ("worker", "dead letters", "Write"): "if they are there, give this client Read or Write on them",
    ("worker", "dead letters", "DescribeConfigs"): "the settings of topic 'billing.dlq' can't be read",
    ("worker", "control", "Read"): "this client may not read billing.control/0",
    (
        "worker",
        "control",
        "Write",
    ): "topic 'billing.control' did not acknowledge the copy (TopicAuthorizationFailedError); give this client Write on",
    ("worker", "control", "DescribeConfigs"): "the settings of topic 'billing.control' can't be read",
    ("worker", "group", "Read"): "GroupAuthorizationFailedError: billing); ackwise topics export prints the rights that it needs",
    ("worker", "relay's group", "Describe"): "GroupAuthorizationFailedError: Unable to get coordinator id for billing.relay",
    ("relay", "targets", "Write"): "topic 'orders', which an agent consumes, does not exist or is hidden from this client",
    ("relay", "sources", "DescribeConfigs"): "the settings of topic 'orders' can't be read",
    ("relay", "retry", "Write"): "'billing.retry' must exist",
    ("relay", "retry", "DescribeConfigs"): "the settings of topic 'billing.retry' can't be read",
    ("relay", "delay", "Read"): "partition unreadable: topic=billing.delay",
    ("relay", "delay", "DescribeConfigs"): "the settings of topic 'billing.delay' can't be read",
    (
        "relay",
        "delay",
        "Write",
    ): "topic 'billing.delay' did not acknowledge the copy (TopicAuthorizationFailedError); give this client Write on it",
    ("relay", "dead letters", "Write"): "'billing.dlq' must exist",
    ("relay", "dead letters", "DescribeConfigs"): "the settings of topic 'billing.dlq' can't be read",
    ("relay", "control", "DescribeConfigs"): "the settings of topic 'billing.control' can't be read",
    ("relay", "relay's group", "Read"): "Kafka refused the delay relay: group=billing.relay",
    (
        "producer",
        "sources",
        "Write",
    ): "topic 'orders' refuses the message for good (TopicAuthorizationFailedError); give this user the right to write",
    (
        "producer",
        "delay",
        "Write",
    ): "topic 'billing.delay' refuses the message for good (TopicAuthorizationFailedError); give this user the right",
    ("canceller", "delay", "Read"): "this client may not read billing.delay/",
    (
        "canceller",
        "delay",
        "Write",
    ): "topic 'billing.delay' did not acknowledge the copy (TopicAuthorizationFailedError); give this client Write on",
    ("canceller", "group", "Describe"): "GroupAuthorizationFailedError: Unable to get coordinator id for billing)",
    ("canceller", "relay's group", "Describe"): "GroupAuthorizationFailedError: Unable to get coordinator id for billing.relay)",
    ("operator", "sources", "Read"): "topic 'orders', which an agent consumes, does not exist or is hidden from this client",
    ("operator", "sources", "DescribeConfigs"): "the settings of topic 'orders' can't be read",
    ("operator", "retry", "Read"): "this client may not read billing.retry/0",
    ("operator", "retry", "DescribeConfigs"): "the settings of topic 'billing.retry' can't be read",
    ("operator", "delay", "Read"): "'billing.delay' must exist",
    ("operator", "delay", "DescribeConfigs"): "the settings of topic 'billing.delay' can't be read",
    ("operator", "dead letters", "DescribeConfigs"): "the settings of topic 'billing.dlq' can't be read",
    ("operator", "control", "Read"): "this client may not read billing.control/0",
    ("operator", "control", "DescribeConfigs"): "the settings of topic 'billing.control' can't be read",
    ("operator", "group", "Read"): "allow it to describe the group",
    ("operator", "relay's group", "Describe"): "and 'billing.relay', and to read their topics",
    (
        "operator",
        "retry",
        "Write",
    ): "topic 'billing.retry' did not acknowledge the copy (TopicAuthorizationFailedError); give this client Write on",
    ("operator", "dead letters", "Read"): "there is no topic 'billing.dlq' at",
    ("operator", "state", "Read"): "this client may not read billing.dlq.state/0",
    (
        "operator",
        "state",
        "Write",
    ): "topic 'billing.dlq.state' did not acknowledge the copy (TopicAuthorizationFailedError); give this client Write",
    ("operator", "state", "DescribeConfigs"): "the settings of topic 'billing.dlq.state' can't be read",
    ("operator", "control", "Write"): "TopicAuthorizationFailedError: billing.control",
    ("dashboard", "sources", "Read"): "hidden: ['partitions of orders']",
    ("dashboard", "retry", "Read"): "hidden: ['partitions of billing.retry']",
    ("dashboard", "delay", "Read"): "hidden: ['rungs of billing.delay']",
    ("dashboard", "dead letters", "Read"): "hidden: ['letters', 'redriven letters']",
    ("dashboard", "state", "Read"): "hidden: ['redriven letters']",
    ("dashboard", "control", "Read"): "hidden: ['workers']",
    ("dashboard", "group", "Describe"): "allow it to describe the group",
    ("dashboard", "relay's group", "Describe"): "and 'billing.relay', and to read their topics",
}


#: Rights of which nobody says that they are missing: the topic is hidden then, and a copy in the retry topic is one that nobody knows.
SILENT: Final = {("relay", "sources", "Describe"), ("relay", "control", "Describe"), ("canceller", "retry", "Read")}


def test_each_right_is_taken_away_below() -> None:
    rights = {(role, resource, operation) for role in ROLES for resource, some in RIGHTS[role].items() for operation in some}
    assert rights - SILENT <= {*LACKS}


@pytest.mark.parametrize(
    "lacking",
    [pytest.param(each, id="-".join(each).replace(" ", "-"), marks=() if each[0] == "producer" else pytest.mark.nightly) for each in LACKS],
)
async def test_a_right_that_is_missing_is_named(shop: Shop, caplog: pytest.LogCaptureFixture, lacking: tuple[Role, Resource, str]) -> None:
    role, resource, operation = lacking
    name = shop.topic_or_group(resource)
    rights = [
        right._replace(operations=tuple(each for each in right.operations if right.name != name or each != operation))
        for right in shop.rights(role)
    ]
    work = asyncio.ensure_future(WORK[role](shop, await shop.user(rights)))

    def said() -> str:
        raised = work.exception() if work.done() else None
        return f"{caplog.text}{raised}"

    try:
        await until(lambda: LACKS[lacking] in said(), by=work)
    finally:
        work.cancel()
        await asyncio.wait([work])
