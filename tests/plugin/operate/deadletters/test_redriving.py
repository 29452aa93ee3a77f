"""Letters sent again over a Kafka in memory: what is sent, what is not and why, and what a kill leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from tests.fakes import FULL_DISK, Sink
from tests.plugin.operate.deadletters.letters import Shop, letter
from tests.waiting import PATIENCE

from ackwise import App, Events
from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.operate.deadletter import Selection, read_letter
from ackwise.plugin.operate.deadlettertopics import Place, place_of_app, place_of_group
from ackwise.plugin.operate.resend import Fate, Resent
from ackwise.plugin.operate.resenddeadletters import redrive, refusal
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.topicnames import TopicNames

READY, SENT = Fate.READY, Fate.SENT


def place(shop: Shop, *, handler: str = "bill", sink: Any = None, create_topics: Literal["auto", "never", "broker"] = "auto") -> Place:
    app = App("billing", config=Config(), brokers=shop.kafka.bootstrap, create_topics=create_topics)
    if sink is not None:
        app.use(Events(sink))

    @app.agent("orders", name=handler)
    async def bill(value: bytes) -> None: ...

    return place_of_app(app.group())


async def send(shop: Shop, selection: Selection | None = None, **options: Any) -> Resent:
    where = options.pop("place", None) or place(shop)
    return await redrive(where, selection or Selection(), **{"execute": True, **options})


def fates(result: Resent) -> dict[Fate, int]:
    return result.fates


async def test_a_dry_run_says_what_would_be_sent_and_changes_nothing(shop: Shop) -> None:
    shop.bury(letter(1), letter(2, handler="gone"))
    result = await send(shop, execute=False)
    assert fates(result) == {READY: 1, Fate.HANDLERLESS: 1}
    assert result.places == {Fate.HANDLERLESS: ["0/1"]}
    assert {"billing.retry", "billing.dlq.state"} & {*shop.kafka._cluster.topics} == set()


@pytest.mark.parametrize("timestamp_ms", [-1, -2, -62_135_596_800_000, -(2**63), 2**63 - 1])
async def test_a_message_of_any_timestamp_is_redriven_as_itself(shop: Shop, timestamp_ms: int) -> None:
    shop.bury(letter(7, timestamp_ms=timestamp_ms))
    assert fates(await send(shop)) == {SENT: 1}
    (copy,) = shop.copies()
    assert copy.origin == Origin("orders", 0, 7, timestamp_ms)


async def test_a_copy_is_the_letter_without_our_headers_at_attempt_1_with_a_replay_id(shop: Shop) -> None:
    shop.bury(letter(7, headers=(("trace", b"t"), ("ackwise-version", b"2"))), letter(8, key=None, value=None), partition=1)
    assert fates(await send(shop)) == {SENT: 2}
    first, second = shop.copies()
    assert (first.key, first.value, first.headers) == (b"ann", b'{"id": "a", "amount": 1}', (("trace", b"t"), ("ackwise-version", b"2")))
    assert (str(first.origin), first.origin.timestamp_ms, first.handler) == ("orders/0/7", 1_000, "bill")
    assert (first.attempt, first.replay_id) == (1, b"redrive-1")
    assert (second.key, second.value, second.replay_id) == (None, None, b"redrive-1")
    assert shop.states() == {"1/0": ("redriven", 1), "1/1": ("redriven", 1)}
    assert shop.kafka.records("orders") == []


async def test_what_was_sent_is_not_sent_again_unless_it_is_asked_for_and_then_under_the_next_id(shop: Shop) -> None:
    shop.bury(letter(7))
    await send(shop)
    assert fates(await send(shop)) == {}
    assert fates(await send(shop, Selection(again=True))) == {SENT: 1}
    assert [copy.replay_id for copy in shop.copies()] == [b"redrive-1", b"redrive-2"]
    assert shop.kafka.records("billing.dlq.state")[-1].key == shop.kafka.records("billing.dlq.state")[0].key
    assert shop.states() == {"0/0": ("redriven", 2)}


class Killed(BaseException):
    """The process is gone."""


async def test_after_a_kill_at_most_one_portion_is_sent_again_and_under_the_same_id(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.bury(*(letter(number) for number in range(6)))
    monkeypatch.setattr("ackwise.plugin.operate.resend._PORTION", 2)
    turns = itertools.count()
    publish = KafkaPublisher.publish

    async def killed(publisher: KafkaPublisher, copies: Sequence[Copy]) -> list[Any]:
        if copies[0].topic == "billing.dlq.state" and next(turns) == 1:
            raise Killed
        return await publish(publisher, copies)

    monkeypatch.setattr(KafkaPublisher, "publish", killed)
    with pytest.raises(Killed):
        await send(shop)
    assert sorted(shop.states()) == ["0/0", "0/1"]
    assert fates(await send(shop)) == {SENT: 4}
    assert Counter(copy.origin.offset for copy in shop.copies()) == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1}
    assert {copy.replay_id for copy in shop.copies()} == {b"redrive-1"}
    assert len(shop.states()) == 6


async def test_a_stop_finishes_the_portion_and_another_call_goes_on(shop: Shop) -> None:
    shop.bury(*(letter(number) for number in range(3)))
    stop = asyncio.Event()
    stop.set()
    stopped = await send(shop, stop=stop, rate=1.0)
    assert (fates(stopped), stopped.stopped, stopped.is_done) == ({SENT: 1}, True, False)
    assert sorted(shop.states()) == ["0/0"]
    assert fates(await send(shop, rate=1e9)) == {SENT: 2}


async def test_what_got_no_answer_is_not_noted_and_what_got_one_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.bury(*(letter(number) for number in range(3)))
    publish = KafkaPublisher.publish

    async def partly(publisher: KafkaPublisher, copies: Sequence[Copy]) -> list[Any]:
        if copies[0].topic == "billing.retry":
            return [None, PublishUnavailable("away"), PublishRefused("too large")]
        return await publish(publisher, copies)

    monkeypatch.setattr(KafkaPublisher, "publish", partly)
    with pytest.raises(PublishUnavailable, match="away"):
        await send(shop)
    assert sorted(shop.states()) == ["0/0"]
    monkeypatch.setattr(KafkaPublisher, "publish", publish)
    assert fates(await send(shop)) == {SENT: 2}


async def test_a_state_that_no_broker_takes_is_an_error_that_says_what_follows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.bury(letter(1))
    publish = KafkaPublisher.publish

    async def stateless(publisher: KafkaPublisher, copies: Sequence[Copy]) -> list[Any]:
        return [PublishUnavailable("away")] if copies[0].topic == "billing.dlq.state" else await publish(publisher, copies)

    monkeypatch.setattr(KafkaPublisher, "publish", stateless)
    with pytest.raises(PublishUnavailable, match="may be noted or not: away; they may be sent again, under the same replay id"):
        await send(shop)
    monkeypatch.setattr(KafkaPublisher, "publish", publish)
    assert fates(await send(shop)) == {SENT: 1}
    assert [copy.replay_id for copy in shop.copies()] == [b"redrive-1"] * 2


async def test_events_are_durable_before_a_state_and_say_which_letter_was_sent(shop: Shop) -> None:
    shop.bury(letter(7))
    sink = Sink()
    sink.error = FULL_DISK
    with pytest.raises(EventLogUnavailable):
        await send(shop, place=place(shop, sink=sink))
    assert shop.states() == {}
    sink.error = None
    result = await send(shop, place=place(shop, sink=sink))
    assert result.recorded
    event = sink.durable[-1]
    assert (event.code, event.topic, event.partition, event.offset) == (EventCode.REDELIVERED, "orders", 0, 7)
    assert (event.handler, event.attempt, event.phys_topic) == ("bill", 1, "billing.retry")
    assert json.loads(event.attrs or "") == {"redrive": "redrive-1", "letter": "billing.dlq/0/0"}
    assert not (await send(shop)).recorded  # the app without Events


async def test_a_shortened_letter_takes_what_it_lacks_from_its_origin(shop: Shop) -> None:
    key = b"k" * 300
    shop.kafka.produce("orders", b"whole", key=key, headers=[("trace", b"whole")], timestamp=9)
    shop.bury(*(letter(0, key=key, value=b"whole", timestamp_ms=9_000, shrunk=steps) for steps in (1, 2, 3)))
    assert fates(await send(shop)) == {SENT: 3}
    for copy in shop.copies():
        assert (copy.key, copy.value, copy.headers) == (key, b"whole", (("trace", b"whole"),))


async def test_a_shortened_letter_whose_origin_is_gone_or_another_record_is_refused(shop: Shop) -> None:
    shop.kafka.produce("orders", b"0", key=b"ann", timestamp=9)
    shop.kafka.produce("orders", b"1", key=b"bob", timestamp=9)
    shop.kafka.produce("orders", b"2", key=b"ann", timestamp=10)
    shop.kafka.log("orders").trim(1)
    gone = [
        letter(0, timestamp_ms=9_000, shrunk=1),
        letter(1, timestamp_ms=9_000, shrunk=1),
        letter(2, timestamp_ms=9_000, shrunk=1),
        letter(3, timestamp_ms=9_000, shrunk=1),
        letter(2, key=b"a" * 300, timestamp_ms=10_000, shrunk=3),
        letter(0, topic="sold", timestamp_ms=9_000, shrunk=1),
    ]
    shop.bury(*gone)
    result = await send(shop)
    assert fates(result) == {Fate.SHORTENED: 6}
    assert result.places == {Fate.SHORTENED: [f"0/{number}" for number in range(5)] + ["0/5"]}
    assert (shop.copies(), shop.states(), result.is_done) == ([], {}, False)


def test_a_letter_that_could_not_come_back_as_what_it_was_is_refused() -> None:
    for copy, fate in (
        (letter(), None),
        (letter(topic="billing.retryable"), None),
        (letter(group="mail"), Fate.FOREIGN),
        (letter(topic="billing.retry", handler="-", reason="foreign-copy"), Fate.ORIGINLESS),
        (letter(topic="billing.delay", reason="foreign-copy"), Fate.ORIGINLESS),
        (letter(topic="billing.delay", handler="-", reason="send-refused"), Fate.ORIGINLESS),
        (letter(handler="ship", reason="no-handler"), Fate.HANDLERLESS),
        (letter(headers=(("\udcff", b"v"),)), Fate.RENAMED),
        (letter(reason="expired"), Fate.EXPIRED),
    ):
        origin = Origin("billing.dlq", 0, 0, 5)
        found = read_letter(Delivery(*origin, copy.key, copy.value, copy.headers, origin), "billing")
        assert refusal(found, TopicNames("billing"), {"bill"}) is fate, copy


async def test_what_has_expired_is_sent_only_where_that_is_asked_for_and_says_so(shop: Shop) -> None:
    shop.bury(letter(1, reason="expired"), letter(2), letter(3, reason="expired", handler="gone"))
    result = await send(shop)
    assert (fates(result), result.is_done) == ({Fate.EXPIRED: 1, SENT: 1, Fate.HANDLERLESS: 1}, False)
    assert [copy.origin.offset for copy in shop.copies()] == [2]
    assert fates(await send(shop, expired=True)) == {SENT: 1, Fate.HANDLERLESS: 1}
    assert [(copy.origin.offset, copy.replay_id) for copy in shop.copies()] == [(2, b"redrive-1"), (1, b"redrive-1")]


async def test_the_commands_send_what_has_expired_with_an_option(shop: Shop) -> None:
    shop.bury(letter(1, reason="expired"))
    assert "left expired, needs --expired: 0/0" in await shop.run("redrive", shop.app, "--yes", code=1)
    listed = await shop.ackwise("list", shop.app, "--json", code=1)
    assert (listed["open"], listed["expired"]) == (1, 1)
    assert "1 of the open dead letters expired before they ran; redrive sends them with --expired only" in await shop.ackwise(
        "list", shop.app, code=1
    )
    file = str(shop.folder / "letters.jsonl")
    await shop.ackwise("export", shop.app, file)
    assert "needs --expired" in await shop.run("import", shop.app, file, "--yes", code=1)
    assert shop.kafka.records("billing.retry") == []
    await shop.run("import", shop.app, file, "--expired", "--yes")
    await shop.run("redrive", shop.app, "--expired", "--again", "--yes")
    assert [copy.replay_id for copy in shop.copies()] == [b"redrive-1", b"redrive-2"]


async def test_a_record_of_somebody_else_among_the_letters_is_left_alone_and_leaves_nothing_to_do(shop: Shop) -> None:
    shop.kafka.produce("billing.dlq", b"x", headers=[("ackwise-version", b"2"), ("ackwise-group", b"mail")])
    shop.bury(letter(1))
    result = await send(shop)
    assert (fates(result), result.is_done) == ({Fate.FOREIGN: 1, SENT: 1}, True)
    assert len(shop.copies()) == 1


async def test_a_compacted_state_topic_is_made_only_where_the_app_may_make_topics_and_no_worker_asks_for_it(shop: Shop) -> None:
    shop.bury(letter(1))
    await send(shop, Selection(cause="00000000"))  # makes the group's own topics, and that one
    made = shop.kafka._cluster.topics.pop("billing.dlq.state")
    assert (len(made.partitions), made.config("cleanup.policy")) == (1, "compact")
    assert "billing.dlq.state" not in place(shop).names.all
    refusing: tuple[Literal["never", "broker"], ...] = ("never", "broker")
    for create_topics in refusing:
        said = f"create_topics is '{create_topics}'; create it with 1 partition and cleanup.policy=compact"
        with pytest.raises(ConfigurationError, match=said):
            await send(shop, place=place(shop, create_topics=create_topics))
    assert shop.copies() == []


async def test_a_state_topic_that_forgets_is_refused_before_anything_is_sent(shop: Shop) -> None:
    shop.bury(letter(1))
    shop.kafka.create_topic("billing.dlq.state", cleanup_policy="delete")
    with pytest.raises(ConfigurationError, match="forgets what was redriven, since its cleanup"):
        await send(shop)
    assert shop.kafka.records("billing.retry") == []


async def test_a_group_without_its_app_can_not_tell_whether_a_handler_is_gone(shop: Shop) -> None:
    group = place_of_group(place(shop).settings)
    with pytest.raises(ConfigurationError, match="'billing' is a group, and only its app knows"):
        await redrive(group, Selection(), execute=True)


async def test_the_command_looks_first_and_sends_when_told_to(shop: Shop) -> None:
    shop.bury(letter(1), letter(2, handler="gone"))
    shown = await shop.run("redrive", shop.app, code=1)
    assert "would be sent" in shown
    assert "left its handler is no longer in the app: 0/1" in shown
    assert "nothing was changed; add --yes to do it" in shown
    assert "billing.dlq.state" not in shop.kafka._cluster.topics
    done = await shop.run("redrive", shop.app, "0/0", "--yes", "--json")
    assert done == {
        "executed": True, "recorded": False, "stopped": False, "letters": [{"handler": "bill", "fate": "sent", "letters": 1}], "left": {}
    }  # fmt: skip
    assert "no dead letter is selected" in await shop.run("redrive", shop.app, "--handler", "bill")
    assert "--rate is 0; it must be a number above 0" in await shop.run("redrive", shop.app, "--rate", "0", code=2)


@pytest.mark.slow  # starts a process that redrives five letters a second
async def test_a_signal_finishes_the_portion_and_ends_with_130(shop: Shop) -> None:
    shop.bury(*(letter(number) for number in range(40)))
    command = [sys.executable, "-m", "ackwise.plugin.cli", "dlq", "redrive", shop.app, "--yes", "--rate", "5"]
    process = await asyncio.create_subprocess_exec(*command, cwd=shop.folder, stdout=PIPE, stderr=STDOUT)
    async with asyncio.timeout(PATIENCE):
        while True:
            if "billing.dlq.state" in shop.kafka._cluster.topics and shop.states():
                break
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = (await process.communicate())[0].decode()
    assert (process.returncode, "stopped; call it again to continue" in said) == (130, True), said
    assert len(shop.states()) == len(shop.copies()) < 40
