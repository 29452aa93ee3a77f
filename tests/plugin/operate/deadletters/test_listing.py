"""`ackwise dlq list` and `show`, as a user calls them, over a Kafka in memory."""

from __future__ import annotations

from tests.plugin.operate.deadletters.letters import APP, Shop, failure, letter
from typer.testing import CliRunner

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.operate.deadletter import LetterState, encode_state, read_letter


async def test_letters_are_counted_by_their_causes(shop: Shop) -> None:
    shop.bury(letter(1), letter(2, why=failure(line=40)), timestamp=50)
    shop.bury(letter(3, reason="rejected"), letter(4), partition=1, timestamp=60)
    found = await shop.ackwise("list", shop.app, "--json", code=1)
    kinds = [(each["reason"], each["error"], each["place"], each["handler"], each["topic"], each["open"]) for each in found["causes"]]
    assert kinds == [
        ("max-reconsume-times", "KeyError", "shop/billing.py:bill", "bill", "orders", 3),
        ("rejected", "KeyError", "shop/billing.py:bill", "bill", "orders", 1),
    ]
    first = found["causes"][0]
    assert (first["oldest"], first["newest"], first["letter"]) == ("1970-01-01T00:00:50.000+00:00", "1970-01-01T00:01:00.000+00:00", "1/1")
    assert (found["topic"], found["open"], found["foreign"]) == ("billing.dlq", 4, 0)
    assert [each["letter"] for each in found["letters"]] == ["1/1", "1/0", "0/1", "0/0"]
    shown = await shop.ackwise("list", shop.app, code=1)
    assert "max-reconsume-times" in shown
    only = await shop.ackwise("list", shop.app, "--cause", first["cause"], "--json", code=1)
    assert only["open"] == 3


async def test_what_was_done_with_a_letter_is_counted_and_nothing_open_is_exit_code_0(shop: Shop) -> None:
    shop.bury(letter(1), letter(2), timestamp=50)
    shop.kafka.create_topic("billing.dlq.state")
    for offset, state in enumerate(("redriven", "dropped")):
        origin = Origin("billing.dlq", 0, offset, 50_000)
        found = read_letter(Delivery(*origin, None, None, letter(offset).headers, origin), "billing")
        key, value = encode_state(found.id, LetterState(state, 1, 5, found.message))  # type: ignore[arg-type]
        shop.kafka.produce("billing.dlq.state", value, key=key)
    listed = await shop.ackwise("list", "billing", "--brokers", shop.kafka.bootstrap, "--json")
    (cause,) = listed["causes"]
    assert (cause["open"], cause["redriven"], cause["dropped"]) == (0, 1, 1)
    assert [each["state"] for each in listed["letters"]] == ["dropped", "redriven"]


async def test_a_group_without_its_app_and_a_topic_of_another_name(shop: Shop) -> None:
    shop.kafka.create_topic("trouble", max_message_bytes=2_000_000)
    copy = letter(1)
    shop.kafka.produce("trouble", copy.value, key=copy.key, headers=copy.headers)
    given = ("billing", "--brokers", shop.kafka.bootstrap)
    assert "no dead letters" in await shop.ackwise("list", *given)
    assert (await shop.ackwise("list", *given, "--dlq", "trouble", "--json", code=1))["open"] == 1
    assert "there is no topic 'mail.dlq'" in await shop.ackwise("list", "mail", *given[1:], code=2)


async def test_a_letter_is_shown_with_what_its_handler_would_get_and_its_story(shop: Shop) -> None:
    shop.write_app(APP + "\nfrom ackwise import Events\napp.use(Events({folder!r}))\n")
    shop.bury(letter(7), letter(8, value=b"\xff{", reason="undecodable", key=None))
    found = await shop.ackwise("show", shop.app, "0/0", "--json")
    assert found["decoded"] == "Order(id='a', amount=1)"
    assert (found["value"], found["headers"], found["key"]) == ('{"id": "a", "amount": 1}', [["trace", "t"]], "ann")
    assert found["story"] == f"ackwise why orders/0/7 {shop.folder}"
    assert (found["message_text"], found["line"]) == ("'vat'", "/srv/shop/billing.py:31")
    assert "Traceback" in found["traceback"]
    shown = await shop.ackwise("show", shop.app, "0/0")
    assert "Order(id='a', amount=1)" in shown
    assert "Traceback" not in shown
    assert "rate" in await shop.ackwise("show", shop.app, "0/0", "--full-traceback")
    bad = await shop.ackwise("show", shop.app, "0/1", "--json")
    assert bad["value"] == "0xff7b"
    assert bad["decoded"].startswith("ValidationError: ")
    plain = await shop.ackwise("show", "billing", "0/0", "--brokers", shop.kafka.bootstrap, "--json")
    assert (plain["decoded"], plain["story"]) == (None, "ackwise why orders/0/7 EVENTS")
    for name in ("0/2", "1/0", "7/0"):
        assert f"there is no dead letter {name} in 'billing.dlq'" in await shop.ackwise("show", shop.app, name, code=2)


HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]boo[/red]\r\n\u202e|\ud800"


async def test_hostile_text_in_every_field_reaches_no_terminal_as_a_command(shop: Shop) -> None:
    raw = HOSTILE.encode("utf-8", "backslashreplace")
    hostile = letter(
        1, handler="b\x1b[2J[red]", topic="orders", key=raw, value=raw, headers=((HOSTILE[:-1], raw),), reason=HOSTILE,
        why=failure(error=HOSTILE, function="f\x1b[2J", message=HOSTILE)
    )  # fmt: skip
    shop.bury(hostile)
    shop.kafka.produce("billing.dlq", raw, key=raw, headers=[(HOSTILE[:-1], raw), ("ackwise-version", raw), ("ackwise-group", raw)])
    shop.kafka.produce("billing.dlq", None, headers=[("ackwise-version", b"2"), ("ackwise-group", raw)])
    for arguments, code in (
        (("list", shop.app), 1), (("list", shop.app, "--letters"), 1), (("show", shop.app, "0/0", "--full-traceback"), 0),
        (("show", shop.app, "0/1"), 0), (("show", shop.app, "0/2"), 0)
    ):  # fmt: skip
        shown = await shop.ackwise(*arguments, code=code)
        assert not set(shown) & {"\x1b", "\x07", "\r", "\u202e"}, arguments
        assert "boo" not in shown or "[red]boo[/red]" in shown
    found = await shop.ackwise("list", shop.app, "--json", code=1)
    assert (found["open"], found["foreign"]) == (1, 2)


def test_a_mistake_is_one_sentence_and_exit_code_2() -> None:
    for arguments, sentence in (
        ("list billing --cause KeyError", "--cause is 'KeyError'; write 2 to 8 of its hex digits"),
        ("list billing --since yesterday", "--since is 'yesterday', which is neither a time nor a duration"),
        ("list billing --until 99999999999999999999d", "--until is '99999999999999999999d'"),
        ("list billing --key 0xzz", "--key is '0xzz'; after 0x only hex digits are allowed"),
        ("list billing orders/0/1", "'orders/0/1' is not a dead letter; write PARTITION/OFFSET"),
        ("show billing 17", "'17' is not a dead letter; write PARTITION/OFFSET"),
        ("list bill!ng", "group is 'bill!ng'"),
        ("list shop:app --brokers 127.0.0.1:1", "shop:app is an app with its own brokers and topics"),
        ("list billing --brokers kafka", "broker 'kafka' has no port"),
        ("list billing --brokers 127.0.0.1:1", "no broker answers"),
        ("list billing --dlq billing.dlq.state", "the dead-letter topic is 'billing.dlq.state'"),
    ):
        done = CliRunner(env={"COLUMNS": "400"}).invoke(new_app(), ["dlq", *arguments.split()], prog_name="ackwise")
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), arguments
        assert sentence in done.stderr, arguments


async def test_an_app_that_broadcasts_has_no_letters(shop: Shop) -> None:
    shop.write_app(APP + "\nfrom ackwise import Broadcasting\napp.use(Broadcasting('web-1'))\n")
    assert "broadcasts: what fails there is dropped, so it has no dead letters" in await shop.ackwise("list", shop.app, code=2)
