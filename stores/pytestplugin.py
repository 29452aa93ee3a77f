"""`pytest --ackwise-store=module:factory`: the suite of `ackwise.stores.conformance` on a store of your own, without a test file.

pytest finds this module by itself wherever Ackwise is installed. Without the option it does nothing and imports nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

_SUITE: Final = Path(__file__).parent / "conformance" / "suite.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ackwise")
    group.addoption(
        "--ackwise-store",
        metavar="MODULE:FACTORY",
        help="run the suite of every claim store on what FACTORY(place, clock) makes; the module is looked for in the current folder first",
    )
    group.addoption(
        "--ackwise-store-features",
        metavar="NAME=VALUE,...",
        default="",
        help="what that store can do, such as persistent=yes,shared=yes,lease=0.5; it goes before the attribute 'features' of the factory",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suite: with the paths that were given, or alone if none were. Raises `pytest.UsageError`."""
    target = config.getoption("--ackwise-store")
    if target is None:
        return
    import pytest

    pytest.register_assert_rewrite("ackwise.stores.conformance")
    sys.path.insert(0, str(Path.cwd()))
    try:
        from ackwise.stores.conformance.suite import CHOSEN, choose
    except ModuleNotFoundError as error:
        raise pytest.UsageError(f"the suite of Ackwise's stores needs {error.name}; install it") from None
    config.stash[CHOSEN] = choose(target, str(config.getoption("--ackwise-store-features")))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    config.args.append(str(_SUITE))
