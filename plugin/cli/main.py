"""Entry point of the command line. Nothing heavy is imported before an interrupt is heeded."""

from __future__ import annotations

import logging
import sys

#: As shells count it: 128 + SIGINT.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line; our error is one sentence on stderr and exit code 2."""
    # Python prints records that have no handler. What the Kafka client has to say is in our sentence, or in the log of `run`.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        from ackwise.plugin.cli.root import new_app

        new_app()(prog_name="ackwise")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
