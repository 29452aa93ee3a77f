"""The claims of a store as rows, read by the store's own driver: in a task of Spark, or in this process for the local engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.storage.claimstore import ListedStore, Remembered
from ackwise.plugin.cli.command import find_app
from ackwise.plugin.registry import open_store
from ackwise.spark.frames import SparkSession
from ackwise.spark.session.python import require_pandas
from ackwise.spark.storeclaims.comparison import Claims

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ClaimTable", "claim_table"]

_APP: Final = re.compile(r"[\w.]+:\w+")
_ROWS: Final = (
    "dedup_hash long, key string, outcome int, is_claimed boolean, unrecorded boolean, leased_until long, kept_until long, now long"
)
_STORES: Final = "Redis, PostgreSQL, MariaDB or MySQL, and SQLite"


@dataclass(frozen=True, slots=True)
class ClaimTable:
    """A claim store that can be read."""

    address: str
    """Without user, password and options."""
    url: str

    def __repr__(self) -> str:
        return f"ClaimTable({self.address})"

    def read_here(self, session: SparkSession) -> Claims:
        """Return the claims of the store, read in this process. Raises `Unavailable` or `ConfigurationError`."""
        return Claims(self.address, session.createDataFrame(_table(self.url)))

    def read(self, session: SparkSession) -> Claims:
        """Return the claims of the store, which a task of Spark reads where they are used. Raises `Unavailable` or `ConfigurationError`.

        The first of them are read here, so that a mistake is an error of this call and not of a task.
        """
        require_pandas()
        _here(_first, self.url)
        return Claims(self.address, session.range(0, 1, 1, 1).mapInArrow(partial(_in_a_task, self.url), _ROWS))


def claim_table(store: str) -> ClaimTable:
    """The claims of a store's URL, or of the app that is named as `module:app`.

    Raises `ConfigurationError`, without secrets, for a store that does not list its records.
    """
    url = _of_app(store) if _APP.fullmatch(store) else store
    opened = open_store(url)
    if not isinstance(opened, ListedStore):
        raise ConfigurationError(f"the store {url.partition('://')[0]}:// does not list its claims; those in {_STORES} do")
    return ClaimTable(_address(url), url)


def _of_app(target: str) -> str:
    policy = find_app(target).group().dedup
    if not isinstance(policy, Dedup) or not isinstance(policy.store, str):
        raise ConfigurationError(f"the app {target} does not use Dedup with the URL of a store; give the URL instead")
    return policy.store


def _address(url: str) -> str:
    """Return where a store is, without user, password and options."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def _in_a_task(url: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the claims of the store at `url`, once, whatever rows the task is given."""
    if sum(batch.num_rows for batch in batches):
        yield from _batches(url)


def _table(url: str) -> pa.Table:
    import pyarrow as pa

    return _here(lambda: pa.Table.from_batches(_batches(url), _schema()))


def _here(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `work` returns, in a thread: a notebook has an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *arguments).result()


def _first(url: str) -> None:
    next(_pages(url), None)


def _batches(url: str) -> Iterator[pa.RecordBatch]:
    for some in _pages(url):
        yield _batch(some)


def _pages(url: str) -> Iterator[Sequence[Remembered]]:
    """Yield the records of the store page by page, with an event loop of their own."""
    store = open_store(url)
    assert isinstance(store, ListedStore)
    pages: AsyncIterator[Sequence[Remembered]] = store.records()
    with asyncio.Runner() as runner:
        try:
            while (some := runner.run(_next(pages))) is not None:
                yield some
        finally:
            runner.run(_close(pages))


async def _next(pages: AsyncIterator[Sequence[Remembered]]) -> Sequence[Remembered] | None:
    return await anext(pages, None)


async def _close(pages: Any) -> None:
    if hasattr(pages, "aclose"):
        await pages.aclose()


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"long": pa.int64(), "string": pa.string(), "int": pa.int32(), "boolean": pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in map(str.split, _ROWS.split(", "))])


def _batch(some: Sequence[Remembered]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = _schema()
    columns = list(zip(*some, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
