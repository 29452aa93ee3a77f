"""Servers that the processes of a run share: each is started once, when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.databases.server import Missing
from tests.shared import Owner, SharedServer, Start, give_address, owner_of, shared, tell_of_tests


class Counted:
    """Servers that only count how often they are started and ended."""

    def __init__(self) -> None:
        self.started = self.ended = 0

    @contextmanager
    def start(self, _: Path) -> Iterator[SharedServer]:
        self.started += 1
        yield SharedServer(self.started)
        self.ended += 1


def owner_with(folder: Path, **kinds: Start) -> Owner:
    return Owner(lambda name: folder / name, kinds)


def worker_of(owner: Owner) -> Any:
    """The configuration of a worker of this owner."""
    return SimpleNamespace(workerinput={"shared_servers": owner.listen()})


def test_all_who_ask_get_one_server_that_ends_with_its_owner(tmp_path: Path) -> None:
    counted, found = Counted(), list[Any]()
    with closing(owner_with(tmp_path, redis=counted.start)) as owner:
        config = worker_of(owner)
        assert counted.started == 0
        asking = [threading.Thread(target=lambda: found.append(shared(config, "redis"))) for _ in range(8)]
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        assert (found, counted.started, counted.ended) == ([SharedServer(1)] * 8, 1, 0)
    assert counted.ended == 1


def test_a_server_that_can_not_start_skips_or_fails_whoever_asks_and_is_not_tried_again(tmp_path: Path) -> None:
    tried = []

    @contextmanager
    def fails(error: Exception) -> Iterator[None]:
        tried.append(error)
        raise error
        yield

    absent, broken = Missing("redis is not installed"), AssertionError("redis did not come up (code 1): no space left")
    with closing(owner_with(tmp_path, absent=lambda _: fails(absent), broken=lambda _: fails(broken))) as owner:
        config = worker_of(owner)
        for _ in range(2):
            with pytest.raises(Missing, match="redis is not installed"):
                shared(config, "absent")
            with pytest.raises(pytest.fail.Exception, match=r"did not come up \(code 1\): no space left"):
                shared(config, "broken")
    assert tried == [absent, broken]


def test_only_the_first_process_owns_servers(pytestconfig: pytest.Config) -> None:
    given: dict[str, Any] = {}
    if (owner := owner_of(pytestconfig)) is None:
        assert len(pytestconfig.workerinput["shared_servers"]) == 2  # type: ignore[attr-defined]  # of a worker
    else:
        give_address(pytestconfig, given)
        assert given == {"shared_servers": owner.listen()}


def test_the_owner_is_told_which_tests_need_spark_and_how_long_files_may_take(tmp_path: Path) -> None:
    with closing(owner_with(tmp_path)) as owner:
        tell_of_tests(worker_of(owner), ["a", "b"], {"a": 1.5})
        assert (set(owner.of_spark), dict(owner.guessed)) == ({"a", "b"}, {"a": 1.5})
