"""A worker that was asked to stop ends, whatever hangs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ackwise.plugin.faust.startstop import bound


def app_that(stops: Any, **fields: Any) -> Any:
    return SimpleNamespace(
        **{
            "stop": stops,
            "in_worker": True,
            "should_stop": False,
            "conf": SimpleNamespace(id="billing"),
            "_crashed": threading.Event(),
            **fields,
        }
    )


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    begun: list[Any] = []

    def timer(seconds: float, then: Any, args: Any) -> Any:
        begun.append(SimpleNamespace(seconds=seconds, end=lambda: then(*args), start=lambda: None))
        return begun[-1]

    monkeypatch.setattr("ackwise.plugin.faust.startstop.threading.Timer", timer)
    return begun


@pytest.mark.parametrize(("crashed", "code"), [(False, 0), (True, 1)], ids=["stop requested", "crashed"])
async def test_a_worker_that_does_not_come_to_its_end_is_ended_nine_seconds_after_its_drain(
    timers: list[Any], crashed: bool, code: int
) -> None:
    codes: list[int] = []

    async def stop() -> None:
        assert [timer.seconds for timer in timers] == [14.0], "before anything that may hang"

    app = app_that(stop)
    bound(app, lambda: 5.0, end=codes.append)
    await app.stop()
    assert timers[0].daemon
    if crashed:
        app._crashed.set()
    timers[0].end()
    assert codes == [code]


async def test_an_app_that_has_crashed_before_it_stops_is_ended_as_well_and_once(timers: list[Any]) -> None:
    async def stop() -> None: ...

    app, codes = app_that(stop, should_stop=True), list[int]()
    app._crashed.set()
    bound(app, lambda: 5.0, end=codes.append)
    await app.stop()
    await app.stop()
    (timer,) = timers
    timer.end()
    assert codes == [1]


async def test_an_app_that_is_no_worker_process_ends_nobody(timers: list[Any]) -> None:
    async def stop() -> None: ...

    app = app_that(stop, in_worker=False)
    bound(app, lambda: 5.0)
    await app.stop()
    assert timers == []
