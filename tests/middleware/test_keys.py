"""Keys of functions of the user's: plain values, which differ where the keys differ."""

from __future__ import annotations

import copy
import datetime
import enum
import functools
from collections.abc import Awaitable, Coroutine, Hashable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Protocol, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.keys import check_key_function, identifies, key_from, order_hash, packed
from ackwise.middleware.usercode import Raised


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Whole(int): ...


OrderId = NewType("OrderId", str)
T = TypeVar("T")


class Named(Protocol):
    name: str


def found(value: object) -> object:
    return key_from(lambda _: value, None)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.binary(),
    st.uuids(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from([*Color, *Level]),
)
KEYS = st.one_of(SCALARS, st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6))


def exact(key: Any) -> Any:
    """What tells keys apart: 1, True and Decimal(1) are equal, and different keys."""
    if isinstance(key, tuple):
        return tuple(map(exact, key))
    return (type(key), key)


@given(KEYS, KEYS)
def test_two_keys_have_the_same_bytes_if_they_are_the_same(one: Any, other: Any) -> None:
    first, second = found(one), found(other)
    assert not isinstance(first, Raised)
    assert not isinstance(second, Raised)
    assert (packed(first) == packed(second)) == (exact(first) == exact(second))
    assert hash(first) is not None


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 9))
def test_equal_numbers_are_one_key_however_they_are_written(number: Decimal, zeros: int) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    assert packed(number) == packed(Decimal((sign, (*digits, *[0] * zeros), exponent - zeros)) if number else Decimal(0))


def test_the_same_moment_in_two_zones_is_one_key() -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
    assert found(noon) == found(noon.astimezone(datetime.timezone(datetime.timedelta(hours=2))))


@each("value", [Text("a"), Whole(1), 0.5, [], {}, set(), object(), Decimal("NaN"), Decimal("sNaN"), Decimal("inf"), ("a", 0.5), Color, int])
def test_anything_else_is_no_key(value: object) -> None:
    assert isinstance(found(value), Raised)


def test_tuples_without_end_are_no_key() -> None:
    nested: Any = ()
    for _ in range(100_000):
        nested = (nested,)
    assert isinstance(found(nested), Raised)
    while nested:
        (nested,) = nested


@each(
    "key, is_one", [(None, False), ("", False), (b"", False), ((), False), (("", None), False), (0, True), (False, True), (("", 0), True)]
)
def test_what_has_nothing_in_it_identifies_nothing(key: Hashable, is_one: bool) -> None:
    assert identifies(key) is is_one


def returning(annotation: Any) -> Any:
    def find(message: object) -> Any: ...

    find.__annotations__["return"] = annotation
    return find


@each(
    "annotation",
    [
        str,
        bytes,
        int,
        bool,
        None,
        UUID,
        Decimal,
        datetime.date,
        datetime.datetime,
        Color,
        tuple,
        Any,
        object,
        Hashable,
        T,
        OrderId,
        Named,
        str | None,
        float | str,
        tuple[str, int],
        tuple[str, ...],
        Annotated[str, "id"],
        Literal["a"],
        Sequence[str],
        "str",
        "not_there",
        "a b",
    ],
)
def test_a_function_that_may_find_a_key_is_accepted(annotation: Any) -> None:
    check_key_function(returning(annotation), "the key")
    check_key_function(functools.partial(returning(annotation)), "the key")


@each(
    "annotation",
    [
        *(float, dict, list, set, Text, Whole, complex, dict[str, str], list[str], tuple[str, float], Annotated[float, "id"], float | None),
        *(Coroutine[Any, Any, str], Awaitable[str], NewType("Amount", float), "float", "dict[str, str]", float | list[str]),
    ],
)
def test_a_function_that_can_find_none_is_refused(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the key returns .* by its annotation"):
        check_key_function(returning(annotation), "the key")


@given(st.none() | st.text() | st.binary() | st.integers() | st.tuples(st.text(), st.integers()))
def test_the_hash_of_an_order_key_fits_32_bits_and_is_that_of_equal_keys(key: Any) -> None:
    found = order_hash(key)
    assert (found is None) == (key is None)
    assert found is None or (-(2**31) < found < 2**31 and found == order_hash(copy.copy(key)))


def test_the_hash_of_an_order_key_never_changes() -> None:
    assert [order_hash(key) for key in ("a", b"a", "b", ("a", 1), 7)] == [-43650723, -43650723, 1684840679, 82501700, 1310961194]
