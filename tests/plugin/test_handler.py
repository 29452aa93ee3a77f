from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.plugin.handlers.handler import inspect_handler

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]  # stands for a name that exists for type checkers only


class Order(pydantic.BaseModel):
    id: int


@dataclass
class Line:
    sku: str


def message(value: object) -> Message[Any]:
    return Message(Delivery("orders", 0, 0, 0, None, b"", (), Origin("orders", 0, 0, 0)), value)


async def takes_batch(batch: Batch[Order]) -> None: ...
async def takes_bare_batch(batch: Batch) -> None: ...  # type: ignore[type-arg]  # what a user may write
async def takes_message(message: Message[Order]) -> None: ...
async def takes_order(order: Order) -> None: ...
async def takes_line(line: Line) -> None: ...
async def takes_anything(value): ...  # type: ignore[no-untyped-def]  # without annotations it must work too
async def takes_bytes(value: bytes) -> None: ...
async def takes_text(value: str) -> None: ...
async def takes_text_or_none(value: str | None) -> None: ...
async def takes_bytes_or_none(batch: Batch[bytes | None]) -> None: ...
async def takes_order_or_none(order: Order | None) -> None: ...
async def takes_short_text(value: Annotated[str, pydantic.Field(max_length=3)]) -> None: ...
async def takes_missing(value: Missing) -> None: ...
async def returns_missing(order: Order) -> Missing: ...
async def takes_two(order: Order, session: object) -> None: ...
async def takes_two_with_default(order: Order, session: object = None) -> None: ...
async def takes_none() -> None: ...
async def takes_lock(lock: Callable[[], Awaitable[None]] | object) -> None: ...


async def takes_list(batch: list[Order]) -> None: ...
async def takes_bare_list(batch: list) -> None: ...  # type: ignore[type-arg]  # what a user may write
async def takes_sequence(batch: Sequence[Order] | None) -> None: ...
async def takes_tuple(batch: tuple[Order, ...]) -> None: ...
async def takes_pair(pair: tuple[str, int]) -> None: ...
async def takes_message_of_list(message: Message[list[int]]) -> None: ...
async def takes_batch_of_lists(batch: Batch[list[int]]) -> None: ...


def plain(order: Order) -> None: ...


async def streams(order: Order):  # type: ignore[no-untyped-def]
    yield order


class Biller:
    async def bill(self, batch: Batch[Order]) -> None: ...

    async def __call__(self, order: Order) -> None: ...


class Opaque:
    pass


async def takes_opaque(value: Opaque) -> None: ...


@each(
    ("handler", "kind"),
    [
        (takes_batch, "batch"),
        (takes_bare_batch, "batch"),
        (takes_message, "message"),
        (takes_order, "message"),
        (takes_anything, "message"),
    ],
)
def test_the_first_annotation_says_the_kind(handler: Any, kind: str) -> None:
    assert inspect_handler(handler).kind == kind


def test_a_method_and_a_callable_object_and_a_partial_are_handlers() -> None:
    assert inspect_handler(Biller().bill).kind == "batch"
    assert inspect_handler(Biller().bill).name == "bill"
    assert inspect_handler(Biller()).decoding.decode(b'{"id": 1}') == Order(id=1)
    assert inspect_handler(functools.partial(takes_two, session=1)).decoding.decode(b'{"id": 1}') == Order(id=1)


async def test_a_handler_of_a_value_gets_the_value_and_one_of_a_message_gets_the_message() -> None:
    seen: list[object] = []

    async def bill(order: int) -> None:
        seen.append(order)

    async def note(message: Message[int]) -> None:
        seen.append(message)

    one = message(1)
    await inspect_handler(bill).call(one)
    await inspect_handler(note).call(one)
    assert seen == [1, one]


async def test_what_the_handler_returns_and_raises_comes_through() -> None:
    async def answer(value: int) -> object:
        if value == 0:
            raise KeyError("zero")
        return value

    handler = inspect_handler(answer)
    assert await handler.call(message(7)) == 7
    with pytest.raises(KeyError):
        await handler.call(message(0))


@each(
    ("handler", "raw", "value"),
    [
        (takes_batch, b'{"id": 3}', Order(id=3)),
        (takes_message, b'{"id": 3}', Order(id=3)),
        (takes_order, b'{"id": 3}', Order(id=3)),
        (takes_line, b'{"sku": "a"}', Line("a")),
        (takes_anything, b"\xff", b"\xff"),
        (takes_bare_batch, b"\xff", b"\xff"),
        (takes_bytes, b"\xff", b"\xff"),
        (takes_text, "ü".encode(), "ü"),
        (takes_text_or_none, None, None),
        (takes_bytes_or_none, None, None),
        (takes_order_or_none, None, None),
        (takes_order_or_none, b"null", None),
        (takes_order_or_none, b'{"id": 3}', Order(id=3)),
        (returns_missing, b'{"id": 3}', Order(id=3)),
        (takes_two_with_default, b'{"id": 3}', Order(id=3)),
        (takes_pair, b'["a", 1]', ("a", 1)),
        (takes_message_of_list, b"[1, 2]", [1, 2]),
        (takes_batch_of_lists, b"[1, 2]", [1, 2]),
    ],
)
def test_a_payload_is_decoded_as_its_type_says(handler: Any, raw: bytes | None, value: object) -> None:
    assert inspect_handler(handler).decoding.decode(raw) == value


@each(
    ("handler", "raw"),
    [
        (takes_order, b"not json"),
        (takes_order, b"{}"),
        (takes_order, b"null"),
        (takes_order, b""),
        (takes_order, None),
        (takes_bytes, None),
        (takes_anything, None),
        (takes_text, None),
        (takes_text, b"\xff"),
        (takes_line, None),
        (takes_short_text, b'"long"'),
    ],
)
def test_what_does_not_fit_the_type_is_undecodable(handler: Any, raw: bytes | None) -> None:
    decode = inspect_handler(handler).decoding.decode
    with pytest.raises(ValueError, match=r".+"):
        decode(raw)


def test_a_model_says_the_payload_where_the_annotation_does_not() -> None:
    assert inspect_handler(takes_bare_batch, model=Order).decoding.decode(b'{"id": 3}') == Order(id=3)
    assert inspect_handler(takes_anything, model=Order).decoding.decode(b'{"id": 3}') == Order(id=3)
    assert inspect_handler(takes_batch, model=Order).decoding.decode(b'{"id": 3}') == Order(id=3)


@each(
    ("handler", "model", "sentence"),
    [
        (plain, None, "handler 'plain' is not an `async def`"),
        (streams, None, "handler 'streams' is not an `async def`"),
        (takes_missing, None, "'Missing', which can't be resolved"),
        (takes_two, None, "is called with one argument"),
        (takes_none, None, "is called with one argument"),
        (takes_opaque, None, "takes Opaque, which pydantic can't decode"),
        (takes_batch, Line, "takes Order and was given model=Line"),
        (takes_list, None, "take Batch[Order] for a whole batch, or Message[list[tests.plugin.test_handler.Order]] for single messages"),
        (takes_bare_list, None, "take Batch[Any] for a whole batch, or Message[list] for single messages"),
        (takes_sequence, Order, "take Batch[Order] for a whole batch"),
        (takes_tuple, None, "take Batch[Order] for a whole batch"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_with_a_sentence(handler: Any, model: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        inspect_handler(handler, model=model)
