"""What a healthy batch passes through is counted without the broker, the idle worker and comprehensions."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.path import Function, Passed, measure


@pytest.mark.slow  # waits for a profiled worker, at work and idle
def test_a_batch_passes_through_the_pipeline_and_not_through_the_broker() -> None:
    passed = asyncio.run(measure(20))
    assert Function("middleware/pipeline/pipeline.py", "Pipeline.__call__") in passed.calls
    assert {function.file.partition("/")[0] for function in passed.calls} == {"middleware", "plugin", "stores"}
    assert passed.calls[Function("middleware/message/message.py", "Message.value")] == 20


def test_a_class_is_counted_once_and_a_local_function_belongs_to_the_class_around_it() -> None:
    names = ("Lane.offer", "Lane.start", "Lane.start.<locals>.done", "free", "free.<locals>.inner")
    passed = Passed(1, {Function("lane.py", name): 2 for name in names})
    assert passed.figures() == {"functions": 5, "classes": 1, "files": 1, "calls": 10}
