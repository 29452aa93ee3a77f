"""Templates: each driver's placeholders for the same statement, and names of tables that nothing in them can change."""

from __future__ import annotations

from ackwise.stores.sql.operation import Placeholders, Statement, Templates

NAMES: dict[str, str | int] = {"rows": '"50% {off} :x"', "SENT": 4}
WORDS = {
    "now": "clock()",
    "later": "clock() + :it * interval",
    "among": "= ANY (:it)",
    "age": "clock() - {it}",
    "old": "{age created} > :it",
}

dollars = Templates(WORDS, NAMES, Placeholders("${}".format, repeats=False))
percents = Templates(WORDS, NAMES, Placeholders(lambda _: "%s", repeats=True, escape=lambda name: name.replace("%", "%%")))


def test_a_value_that_is_named_twice_is_one_place_or_two() -> None:
    template, values = "SET a = :a, b = :b, c = :a::bigint[] WHERE x {among a}", {"a": [1], "b": 2, "other": 3}
    assert dollars(template, values) == Statement("SET a = $1, b = $2, c = $1::bigint[] WHERE x = ANY ($1)", [[1], 2])
    assert percents(template, values) == Statement("SET a = %s, b = %s, c = %s::bigint[] WHERE x = ANY (%s)", [[1], 2, [1], [1]])


def test_words_take_a_value_or_anything_else() -> None:
    assert dollars("{later lease} {age min(created)} {old age}", {"lease": 5, "age": 6}) == Statement(
        "clock() + $1 * interval clock() - min(created) clock() - created > $2", [5, 6]
    )


def test_a_name_is_put_in_as_it_is_and_escaped_where_there_are_values() -> None:
    assert percents("SELECT {SENT} FROM {rows}", {}) == Statement('SELECT 4 FROM "50% {off} :x"', [])
    assert percents("SELECT :a FROM {rows}", {"a": 1}) == Statement('SELECT %s FROM "50%% {off} :x"', [1])
    assert dollars("SELECT :a FROM {rows}", {"a": 1}) == Statement('SELECT $1 FROM "50% {off} :x"', [1])


def test_values_are_adapted_to_the_driver() -> None:
    hexed = Templates({}, {}, Placeholders(lambda _: "?", repeats=True, adapt=hex))
    assert hexed("SELECT :a, :a", {"a": 10}) == Statement("SELECT ?, ?", ["0xa", "0xa"])
