"""`ackwise relay module:app`: the delay relay of an app in a process of its own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from ackwise.plugin.cli.logs import print_log
from ackwise.plugin.cli.run import LogFormatOption, LogLevelOption
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.process.garbage import collect_rarely
from ackwise.plugin.process.watchdog import Watchdog

if TYPE_CHECKING:
    from ackwise.plugin.group.group import Group

__all__ = ["relay"]

#: Seconds after the first signal, and after the second, until the process ends, whatever hangs.
_EXIT_WITHIN: Final = (30.0, 5.0)


def relay(target: Target, log_level: LogLevelOption = "info", log_format: LogFormatOption = "text") -> None:
    """Bring back what is due in the delay topics of an app, and run none of its handlers, until SIGINT or SIGTERM.

    Any number may run, beside workers that relay themselves as well. With relay = apart no worker does, and this must run.

    Exit code 0: it committed and left. 2: it can't start. 128 + n: a second signal n ended it at once.
    """
    import asyncio

    print_log(log_level, log_format)
    collect_rarely()
    asyncio.run(_relay_until_signalled(find_app(target).group()))


async def _relay_until_signalled(group: Group) -> None:
    import asyncio

    from ackwise.plugin.relay.apart import relay_apart

    stop, watchdog = asyncio.Event(), Watchdog()
    relaying = asyncio.ensure_future(relay_apart(group, stop))
    second: list[int] = []

    def on_signal(number: signal.Signals) -> None:
        watchdog.arm(_EXIT_WITHIN[stop.is_set()], 128 + number)
        if stop.is_set():
            second.append(number)
            relaying.cancel()
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, on_signal, each)
    try:
        await relaying
    except asyncio.CancelledError:
        if not second:
            raise
        raise SystemExit(128 + second[0]) from None
    finally:
        watchdog.disarm()
