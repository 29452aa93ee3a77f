"""Which worker of a run is given which tests, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

from tests.scheduling import ByServers, guess


class Node:
    """A worker that is only told what to run."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.told: list[int] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def handed_out(
    tests: Sequence[str],
    seconds: Mapping[str, float],
    of_spark: Sequence[str],
    workers: int = 2,
    guessed: Mapping[str, float] = MappingProxyType({}),
) -> list[list[str]]:
    """What each worker is told to run, if each finishes a test in turn."""
    option = SimpleNamespace(loadscopereorder=True, verbose=0)
    config: Any = SimpleNamespace(option=option, getvalue=lambda _: ["popen"] * workers, hook=None)
    scheduling = ByServers(config, None, of_spark=lambda: of_spark, guessed=lambda: guessed, seconds=seconds)
    nodes: list[Any] = [Node() for _ in range(workers)]
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, tests)
    scheduling.schedule()
    done = [0] * workers
    while not scheduling.tests_finished:
        for number, node in enumerate(nodes):
            if done[number] < len(node.told):
                scheduling.mark_test_complete(node, node.told[done[number]])
                done[number] += 1
    return [[tests[int(index)] for index in node.told] for node in nodes]


def test_all_tests_with_spark_are_one_piece_that_comes_first_and_then_the_files_that_took_longest() -> None:
    spark = [f"a/test_{letter}.py::test_{number}" for letter in "mn" for number in range(4)]
    tests = ["a/test_short.py::test_1", "a/test_long.py::test_1", *spark, "a/test_m.py::test_plain", "a/test_new.py::test_1"]
    seconds = {"a/test_short.py::test_1": 1.0, "a/test_long.py::test_1": 9.0, "a/test_m.py::test_plain": 2.0}
    first, second = handed_out(tests, seconds, spark)
    assert first[:8] == spark
    assert [*second, *first[8:]] == [
        "a/test_new.py::test_1",
        "a/test_long.py::test_1",
        "a/test_m.py::test_plain",
        "a/test_short.py::test_1",
    ]


def test_files_that_nobody_has_measured_are_handed_out_in_their_order() -> None:
    tests = [f"test_{letter}.py::test_{number}" for letter in "abc" for number in range(2)]
    assert handed_out(tests, {}, [], workers=1) == [tests]


def test_of_files_that_nobody_has_measured_those_whose_marks_promise_most_come_first() -> None:
    tests = [f"test_{letter}.py::test" for letter in "abcd"]
    guessed = {"test_a.py": 0.1, "test_b.py": 6.0, "test_c.py": 2.0, "test_d.py": 9.0}
    (told,) = handed_out(tests, {"test_d.py::test": 1.0}, [], workers=1, guessed=guessed)
    assert [test[5] for test in told] == ["b", "c", "d", "a"]


def test_the_marks_of_its_tests_tell_how_long_a_file_may_take() -> None:
    marked: list[Any] = [
        SimpleNamespace(nodeid=f"{file}.py::test", get_closest_marker=set(marks).__contains__)
        for file, marks in (("a", ["slow", "kafka"]), ("a", ["kafka"]), ("b", ["servers"]), ("c", []))
    ]
    assert guess(marked) == {"a.py": 8.0, "b.py": 0.5, "c.py": 0.05}
