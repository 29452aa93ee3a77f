"""Tests over a table: one test runs all of its cases and names each that fails."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

TestT = TypeVar("TestT", bound=Callable[..., Any])


def each(
    names: str | Sequence[str],
    cases: Iterable[Any],
    *,
    ids: Callable[[Any], str] | Sequence[str] | None = None,
    side_by_side: bool = False,
) -> Callable[[TestT], TestT]:
    """Run a test for each of `cases`, as `pytest.mark.parametrize` would, but as one test: for cases that share nothing but the rule.

    A case may be a `pytest.param` with an id. Every case runs. What fails is raised as one group, in which each exception has a note with
    its case. Not for tests with fixtures that a case changes: all cases share them. `side_by_side` is for async tests that mostly wait.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table, named = list[Sequence[Any]](), list[Any]()
    for place, case in enumerate(cases):
        of_pytest = isinstance(case, type(pytest.param()))
        assert not (of_pytest and case.marks), "a case that has its own marks is its own test"
        one = case.values if of_pytest else case if isinstance(case, tuple | list) and len(parameters) > 1 else (case,)
        table.append(one)
        named.append(case.id if of_pytest else ids[place] if isinstance(ids, Sequence) else None)

    def decorate(test: TestT) -> TestT:
        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in parameters]

        def note(error: BaseException, case: Sequence[Any], place: int) -> BaseException:
            error.add_note(f"case {place}: {named[place] or dict(zip(parameters, case, strict=True))!r}")
            return error

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            failed: list[BaseException] = []
            for place, case in enumerate(table):
                try:
                    test(*args, **fixtures, **dict(zip(parameters, case, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # each case runs, whatever another one raised
                    failed.append(note(error, case, place))
            _raise(failed, len(table))

        @functools.wraps(test)
        async def run_async(*args: Any, **fixtures: Any) -> None:
            failed: list[BaseException] = []

            async def run_one(place: int, case: Sequence[Any]) -> None:
                try:
                    await test(*args, **fixtures, **dict(zip(parameters, case, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                    failed.append(note(error, case, place))

            if side_by_side:
                await asyncio.gather(*(run_one(place, case) for place, case in enumerate(table)))
            else:
                for place, case in enumerate(table):
                    await run_one(place, case)
            _raise(failed, len(table))

        made: Any = run_async if inspect.iscoroutinefunction(test) else run
        made.__signature__ = signature.replace(parameters=others)
        del made.__wrapped__
        return made  # type: ignore[no-any-return]

    return decorate


def _raise(failed: Sequence[BaseException], cases: int) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {cases} cases failed", failed)
